"""What a configuration costs: parameters by part, and cache bytes and FLOPs per token."""

from dataclasses import dataclass

import torch
from torch.utils.flop_counter import FlopCounterMode

from antiphase.models.causal_lm import AntiphaseForCausalLM
from antiphase.models.config import AntiphaseConfig

_PROJECTIONS = tuple(f"self_attn.{name}_proj." for name in "qkvo")


@dataclass(frozen=True)
class Summary:
    """The costs of one configuration."""

    heads: dict[str, int]  # that the mechanism derived
    feed_forward_width: int
    parameters: dict[str, int]  # by part, and their total
    cache_bytes: int  # per token
    state_bytes: int  # of the running state of one sequence, in fp32; 0 without one
    flops: int  # of decoding one token at the context length


def summarise(config: AntiphaseConfig, context: int, dtype: torch.dtype) -> Summary:
    """Return what a model costs, without allocating its weights.

    Args:
        config: of the model.
        context: number of tokens in the cache when one more is decoded.
        dtype: of the cache.
    """
    with torch.device("meta"):
        model = AntiphaseForCausalLM(config).eval()
    layer = model.model.attention_layers[0]
    layers = config.num_hidden_layers
    flops, state = _decode(model, context)
    return Summary(
        heads=layer.head_counts,
        feed_forward_width=config.feed_forward_width,
        parameters=parameter_table(model),
        cache_bytes=layers * layer.cache_elements_per_token * dtype.itemsize,
        state_bytes=state,
        flops=flops,
    )


def parameter_table(model: AntiphaseForCausalLM) -> dict[str, int]:
    """Return the number of parameters by part of the model, and the total.

    Args:
        model: may be on the `meta` device.
    """
    parts = dict.fromkeys(
        ("embeddings", "attention: q, k, v, o", "attention: other", "feed-forward", "norms"), 0
    )
    for name, parameter in model.named_parameters():  # tied weights are listed once
        parts[_part(name)] = parts.get(_part(name), 0) + parameter.numel()
    return {**parts, "total": sum(parts.values())}


def _part(name: str) -> str:
    if "embed_tokens" in name:
        return "embeddings"
    if "lm_head" in name:
        return "head"
    if ".self_attn." in name:
        common = any(projection in name for projection in _PROJECTIONS)
        return "attention: q, k, v, o" if common else "attention: other"
    return "feed-forward" if ".mlp." in name else "norms"


@torch.no_grad()
def _decode(model: AntiphaseForCausalLM, context: int) -> tuple[int, int]:
    """Return the FLOPs of decoding one token after `context`, and the running state's bytes."""
    model.set_attn_implementation("reference")  # matmuls that the FLOP counter sees
    layer = model.model.attention_layers[0]
    if layer.cache_elements_per_token == 0:
        context = 1  # costs do not depend on it, and recurrences run token by token on `meta`
    B = 2 if layer.mixes_sequences else 1
    ids = torch.zeros(B, context, dtype=torch.long, device="meta")
    cache = model(ids, use_cache=True, logits_to_keep=1).past_key_values
    with FlopCounterMode(display=False) as counter:
        model(ids[:, :1], past_key_values=cache)
    states = [getattr(layer, "recurrent_states", {}).get(0) for layer in cache.layers]
    return counter.get_total_flops() // B, sum(s.nbytes for s in states if s is not None) // B
