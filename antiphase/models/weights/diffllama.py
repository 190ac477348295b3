"""transformers' `DiffLlama` and our `diff_v1`: heads paired by halves, and adjacent ones.

DiffLlama pairs query head i with i + H/2 and key (and value) head j with j + H_kv/2; its head norm
has no gain. Ours pairs adjacent heads; the gain of its head norm is multiplied into W_O on export.
"""

import re
from typing import Any

import torch
from torch import Tensor
from transformers import DiffLlamaConfig, DiffLlamaForCausalLM

from antiphase.models.causal_lm import AntiphaseForCausalLM
from antiphase.models.config import AntiphaseConfig
from antiphase.models.weights.head_order import halves_to_pairs, pairs_to_halves

SHARED_FIELDS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "rope_parameters",
    "max_position_embeddings",
    "rms_norm_eps",
    "attention_bias",
    "initializer_range",
    "tie_word_embeddings",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
)
_GAIN = "self_attn.norm.gain"
_PAIRED = re.compile(r"\.self_attn\.([qkv])_proj\.(weight|bias)$")
_LAMBDA = re.compile(r"\.self_attn\.lambda_([qk][12])$")
_OUR_LAMBDA = re.compile(r"\.self_attn\.lam\.([qk][12])$")


def from_diffllama(theirs: DiffLlamaForCausalLM) -> AntiphaseForCausalLM:
    """Return a `diff_v1` model with the same logits.

    Args:
        theirs: transformers' model; not changed.

    Raises:
        ValueError: its feed-forward layer has no counterpart here.
    """
    config = theirs.config
    if config.hidden_act != "silu":
        raise ValueError(
            f"hidden_act: got {config.hidden_act!r}; only 'silu' has a counterpart (feed_forward "
            "'swiglu')"
        )
    fields = {name: getattr(config, name) for name in SHARED_FIELDS}
    ours = AntiphaseForCausalLM(
        AntiphaseConfig(
            attention="diff_v1",
            match="none",
            intermediate_size=config.intermediate_size,
            initialisation="published",  # gains of ones, which DiffLlama's state does not have
            **fields,
        )
    )
    heads = {"q": config.num_attention_heads, "k": config.num_key_value_heads}
    heads["v"] = heads["k"]
    state: dict[str, Tensor] = {}
    for name, t in theirs.state_dict().items():
        if found := _PAIRED.search(name):
            t = halves_to_pairs(t, heads[found[1]])
        state[_LAMBDA.sub(r".self_attn.lam.\1", name)] = t
    gains = {name for name in ours.state_dict() if name.endswith(_GAIN)}
    _load(ours, state, missing=gains)
    return ours.to(theirs.dtype).train(theirs.training)


def to_diffllama(ours: AntiphaseForCausalLM) -> DiffLlamaForCausalLM:
    """Return transformers' DiffLlama with the same logits.

    Args:
        ours: a `diff_v1` model with default options; not changed.

    Raises:
        ValueError: the model has something that DiffLlama does not; says what.
    """
    _check_expressible(ours)
    config = ours.config
    theirs = DiffLlamaForCausalLM(
        DiffLlamaConfig(
            intermediate_size=config.feed_forward_width,
            **{name: getattr(config, name) for name in SHARED_FIELDS},
        )
    )
    heads = {"q": config.num_attention_heads, "k": config.num_key_value_heads}
    heads["v"] = heads["k"]
    state: dict[str, Tensor] = {}
    for name, t in _without_gains(ours.state_dict()).items():
        if found := _PAIRED.search(name):
            t = pairs_to_halves(t, heads[found[1]])
        state[_OUR_LAMBDA.sub(r".self_attn.lambda_\1", name)] = t
    _load(theirs, state, missing=set())
    return theirs.to(ours.dtype).train(ours.training)


def _check_expressible(ours: AntiphaseForCausalLM) -> None:
    config = ours.config
    fixed: dict[str, Any] = {  # what DiffLlama always is
        "attention": "diff_v1",
        "feed_forward": "swiglu",
        "norm": "rms",
        "norm_position": "pre",
        "mlp_bias": False,
        "scale_embedding": False,
        "position": "rope",
        "sliding_window": None,
        "attn_logit_softcapping": None,
    }
    for name, value in fixed.items():
        if getattr(config, name) != value:
            raise ValueError(
                f"{name}: got {getattr(config, name)!r}, but DiffLlama is always {value!r}"
            )
    options = ours.model.attention_layers[0].options
    plain = type(options)()
    if options != plain:
        raise ValueError(f"attention_options: got {options}, but DiffLlama has only {plain}")


def _without_gains(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the same function's weights without head-norm gains: W_O's columns are multiplied.

    Gains are fp32, hence so are the products; they are rounded once, to the model's dtype.
    """
    folded = dict(state)
    for name, gain in state.items():
        if name.endswith(_GAIN):
            del folded[name]
            W_O = name.removesuffix(_GAIN) + "self_attn.o_proj.weight"
            columns = state[W_O].unflatten(1, (-1, gain.numel()))  # [D, h, 2d]
            folded[W_O] = (columns * gain).flatten(1)
    return folded


def _load(model: torch.nn.Module, state: dict[str, Tensor], missing: set[str]) -> None:
    """Load a complete state; raise if anything beside `missing` is missing, or unexpected."""
    result = model.load_state_dict(state, strict=False)
    absent = sorted(set(result.missing_keys) - missing)
    if absent or result.unexpected_keys:
        raise ValueError(
            f"weights: missing {absent or 'none'}, unknown {result.unexpected_keys or 'none'}"
        )
