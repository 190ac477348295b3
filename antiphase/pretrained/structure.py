"""The attention of a Hugging Face model: found by the shape of its modules, not by their names."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")


@dataclass(frozen=True)
class AttentionPart:
    """One layer's attention: four projections, and heads that are concatenated before W_O."""

    name: str
    module: Any
    heads: int
    head_dim: int  # of a head's output
    layer: int  # of the model, from 0


def attention_parts(model: nn.Module) -> list[AttentionPart]:
    """Return the attention of every layer of a model's decoder.

    Raises:
        ValueError: the model has no such attention, or its weights cannot be changed layer by layer
            (quantised, sharded, tied, already adapted or differential); says which.
    """
    if not isinstance(model, PreTrainedModel):
        raise ValueError(f"model: got a {type(model).__name__}, expected a Hugging Face model")
    reject_quantised(model)
    _reject_sharded(model)
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
            "nn.Linear), as Llama, Qwen, Mistral and Gemma have; its attention modules: "
            f"{', '.join(near) or 'none'}"
        )
    _reject_tied(model, [name for name, _ in found])
    return [_part(model, name, module, i) for i, (name, module) in enumerate(found)]


def _part(model: Any, name: str, module: Any, index: int) -> AttentionPart:
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
            f"{name}: o_proj has {module.o_proj.in_features} input features, but {heads} heads of "
            f"value width {width} ({module.v_proj.out_features} / {kv_heads}) give "
            f"{heads * width}; its heads are not simply concatenated before W_O"
        )
    return AttentionPart(name, module, heads, width, getattr(module, "layer_idx", index))


def reject_quantised(model: Any) -> None:
    """Raise if the model's weights are quantised and so cannot be trained."""
    how = getattr(getattr(model, "config", None), "quantization_config", None)
    if how is None:
        return
    method = how.get("quant_method") if isinstance(how, dict) else how.quant_method
    method = getattr(method, "value", method)
    if method == "gguf":
        advice = "its weights are dequantised already: antiphase.models.gguf.plain(model) first"
    else:
        advice = "load the model without quantization_config, in bf16 or fp32"
    raise ValueError(f"{type(model).__name__}: is quantised ({method}); {advice}")


def _reject_sharded(model: nn.Module) -> None:
    devices = getattr(model, "hf_device_map", None) or {}
    if len(set(devices.values())) > 1:
        raise ValueError(
            f"{type(model).__name__}: is spread over {sorted(map(str, set(devices.values())))}; "
            "load it on one device (device_map=None)"
        )
    for name, p in model.named_parameters():
        if type(p.data).__name__ == "DTensor" or p.is_meta:
            what = "has no data (meta device)" if p.is_meta else "is sharded over processes"
            raise ValueError(f"{name}: {what}; unchain the complete model before it is sharded")


def _reject_tied(model: nn.Module, layers: list[str]) -> None:
    names_of: dict[int, list[str]] = {}
    for name, p in model.named_parameters(remove_duplicate=False):
        names_of.setdefault(p.data_ptr(), []).append(name)
    outputs = {f"{layer}.o_proj.weight" for layer in layers}
    for names in names_of.values():
        if len(names) > 1 and outputs & set(names):
            raise ValueError(
                f"{' and '.join(names)} are one tensor; each layer needs a W_O of its own, which "
                "can change without changing another"
            )


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that are trained, by name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def train_only(model: nn.Module, parts: list[AttentionPart], projections: tuple[str, ...]) -> None:
    """Train those projections of every layer, and freeze everything else."""
    model.requires_grad_(False)
    for part in parts:
        for projection in projections:
            for p in getattr(part.module, projection).parameters():
                p.requires_grad_(torch.is_floating_point(p))
