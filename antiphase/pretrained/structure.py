"""Where a Hugging Face model attends: found by the shape of its modules, not by their names."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")


@dataclass(frozen=True)
class AttentionPart:
    """One layer's attention: four projections, and heads that meet W_O side by side."""

    name: str
    module: Any
    heads: int
    head_dim: int  # of a head's output
    layer: int  # of the model, from 0


def attention_parts(model: nn.Module) -> list[AttentionPart]:
    """Return the attention of every layer, or say what was looked for and what is in the way."""
    if not isinstance(model, PreTrainedModel):
        raise ValueError(f"model: got a {type(model).__name__}, expected a Hugging Face model")
    refuse_quantised(model)
    _refuse_sharded(model)
    inside = set(map(id, model.get_decoder().modules()))  # not a vision tower
    found = [
        (name, module)
        for name, module in model.named_modules()
        if id(module) in inside
        and all(isinstance(getattr(module, p, None), nn.Module) for p in PROJECTIONS)
    ]
    if not found:
        near = sorted({type(m).__name__ for m in model.modules() if "tten" in type(m).__name__})
        raise ValueError(
            f"{type(model).__name__}: has no attention with {', '.join(PROJECTIONS)} (each an "
            f"nn.Linear), as Llama, Qwen, Mistral and Gemma have; its attention is "
            f"{', '.join(near) or 'not to be seen'}"
        )
    _refuse_tied(model, [name for name, _ in found])
    return [_part(model, name, module, i) for i, (name, module) in enumerate(found)]


def _part(model: Any, name: str, module: Any, place: int) -> AttentionPart:
    for projection in PROJECTIONS:
        layer = getattr(module, projection)
        if type(layer) is not nn.Linear:
            raise ValueError(
                f"{name}.{projection}: is a {type(layer).__name__}, expected a plain nn.Linear"
                "; an adapter has to be folded or merged first"
            )
    if lambdas := [
        n for n, _ in module.named_parameters() if "lambda" in n or n.startswith("lam.")
    ]:
        raise ValueError(f"{name}: is differential already (it has {lambdas[0]})")
    config = model.config.get_text_config()
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    width = module.v_proj.out_features // kv_heads
    if heads * width != module.o_proj.in_features:
        raise ValueError(
            f"{name}: o_proj takes {module.o_proj.in_features} numbers, but {heads} heads whose "
            f"values are {width} wide ({module.v_proj.out_features} by {kv_heads}) give "
            f"{heads * width}; its heads do not meet W_O side by side"
        )
    return AttentionPart(name, module, heads, width, getattr(module, "layer_idx", place))


def refuse_quantised(model: Any) -> None:
    """Refuse weights that are not numbers to be trained."""
    how = getattr(getattr(model, "config", None), "quantization_config", None)
    if how is None:
        return
    method = how.get("quant_method") if isinstance(how, dict) else how.quant_method
    method = getattr(method, "value", method)
    if method == "gguf":
        advice = "its weights are plain numbers now: antiphase.models.gguf.plain(model) first"
    else:
        advice = "load the model without quantization_config, in bf16 or fp32"
    raise ValueError(f"{type(model).__name__}: is quantised ({method}); {advice}")


def _refuse_sharded(model: nn.Module) -> None:
    places = getattr(model, "hf_device_map", None) or {}
    if len(set(places.values())) > 1:
        raise ValueError(
            f"{type(model).__name__}: is spread over {sorted(map(str, set(places.values())))}; "
            "load it on one device (device_map=None)"
        )
    for name, p in model.named_parameters():
        if type(p.data).__name__ == "DTensor" or p.is_meta:
            what = "has no data (meta device)" if p.is_meta else "is sharded over processes"
            raise ValueError(f"{name}: {what}; unchain the whole model before it is sharded")


def _refuse_tied(model: nn.Module, layers: list[str]) -> None:
    homes: dict[int, list[str]] = {}
    for name, p in model.named_parameters(remove_duplicate=False):
        homes.setdefault(p.data_ptr(), []).append(name)
    outputs = {f"{layer}.o_proj.weight" for layer in layers}
    for names in homes.values():
        if len(names) > 1 and outputs & set(names):
            raise ValueError(
                f"{' and '.join(names)} are one tensor; W_O has to be a layer's own, to be changed "
                "without changing another"
            )


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return what is trained, by name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def frozen(model: nn.Module) -> None:
    """Train nothing."""
    for p in model.parameters():
        p.requires_grad_(False)


def train_only(model: nn.Module, parts: list[AttentionPart], projections: tuple[str, ...]) -> None:
    """Train those projections of every layer, and nothing else."""
    frozen(model)
    for part in parts:
        for projection in projections:
            for p in getattr(part.module, projection).parameters():
                p.requires_grad_(torch.is_floating_point(p))
