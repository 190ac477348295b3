"""The fused kernels for the attention of any Hugging Face model: attn_implementation="antiphase".

Importing `antiphase.models` registers the function with transformers' attention interface. It
computes the model's own standard attention, so weights and outputs stay the same.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.masking_utils import eager_mask, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from antiphase.ops import attention

NAME = "antiphase"
AUTOMATIC = {"gemma3_text", "llama", "mistral", "qwen2", "qwen3"}
"""Models that are changed without being asked; the tests compare each with its own attention."""

_ONLY_SDPA = ("position_bias", "cache")  # arguments: a bias for each pair of positions, pages
_SELECTED_KEYS = ("indices", "block_indices")  # arguments of sparse attention; no mask has them
_APPENDS_TO_MASK = {"deepseek_v4"}  # a bias for further keys, so the mask has to be additive
_USES_INTERFACE: dict[type[PreTrainedConfig], bool] = {}


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Compute a layer's attention, with the arguments that transformers gives its functions.

    Args:
        module: the layer, whose `is_causal` counts where the argument is None.
        query: [B, h, T, d].
        key: [B, h_kv, Tk, d].
        value: [B, h_kv, Tk, dv].
        attention_mask: as `sdpa` has it: boolean, additive, or None where the causal flag is
            enough. It contains a sliding window.
        dropout: of the attention weights.
        scaling: of the scores; default d**-0.5.
        is_causal: whether the future is masked where there is no mask.
        **kwargs: `softcap` and `s_aux` (a sink's logit for each head) are followed. A call with a
            bias, a paged cache or a mask that is learned goes to transformers' `sdpa`; other
            arguments say nothing new.

    Returns:
        [B, T, h, dv], and None for the attention weights.

    Raises:
        ValueError: the layer selects keys by their indices.
    """
    for name in _SELECTED_KEYS:
        if kwargs.get(name) is not None:
            raise ValueError(
                f"attn_implementation={NAME!r}: {type(module).__name__} selects keys ({name}), "
                "which our kernels do not follow; use 'eager' or 'sdpa'"
            )
    learned = attention_mask is not None and attention_mask.requires_grad
    if learned or any(kwargs.get(name) is not None for name in _ONLY_SDPA):
        options = {"dropout": dropout, "scaling": scaling, "is_causal": is_causal, **kwargs}
        out: tuple[Tensor, None] = ALL_ATTENTION_FUNCTIONS["sdpa"](
            module, query, key, value, attention_mask, **options
        )
        return out
    query, key, value = _autocast(query, key, value)
    T = query.shape[2]
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    causal = causal and attention_mask is None and T > 1
    if causal and key.shape[2] > T:  # prefill of a static cache: keys behind T are unwritten
        key, value = key[:, :, :T], value[:, :, :T]
    o = attention(
        query,
        key,
        value,
        sink=kwargs.get("s_aux"),
        causal=causal,
        mask=attention_mask,
        dropout=dropout,
        softcap=kwargs.get("softcap"),
        scale=scaling,
    )
    return o.transpose(1, 2).contiguous(), None


def _autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return what PyTorch's autocast gives its own attention; RoPE's q and k are fp32."""
    device = tensors[0].device.type
    if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple(t if t.dtype == torch.float64 else t.to(dtype) for t in tensors)


def build_mask(*, config: PreTrainedConfig, **arguments: Any) -> Tensor | None:
    """Build the mask that `attend` gets: that of transformers' `sdpa`.

    transformers accepts a registered name for every model, but older ones compute attention by
    themselves and would misread this mask; here is where they are found.

    Args:
        config: of the model.
        **arguments: of transformers' mask functions.

    Raises:
        ValueError: the model does not use the attention interface.
    """
    if not _uses_interface(type(config)):
        raise ValueError(
            f"attn_implementation={NAME!r}: models of {type(config).__name__} compute attention "
            "by themselves, without transformers' attention interface; use 'eager'"
        )
    build = eager_mask if config.model_type in _APPENDS_TO_MASK else sdpa_mask
    mask: Tensor | None = build(config=config, **arguments)
    return mask


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _uses_interface(config: type[PreTrainedConfig]) -> bool:
    """Return whether a model with such a config says that it can be given another attention."""
    if config not in _USES_INTERFACE:
        _USES_INTERFACE[config] = any(
            model._supports_sdpa or model._supports_attention_backend
            for model in _subclasses(PreTrainedModel)
            if model.config_class is config
        )
    return _USES_INTERFACE[config]


def _subclasses(of: type[PreTrainedModel]) -> Iterator[type[PreTrainedModel]]:
    for each in of.__subclasses__():
        yield each
        yield from _subclasses(each)


def use_fused_attention(model: PreTrainedModel) -> None:
    """Let a model on a CPU call our kernel instead of PyTorch's, if the tests have its kind."""
    config = model.config
    on_sdpa = model.device.type == "cpu" and config._attn_implementation == "sdpa"
    if on_sdpa and config.model_type in AUTOMATIC:
        model.set_attn_implementation(NAME)


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, build_mask)
