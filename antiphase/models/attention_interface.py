"""The fused kernels for the attention of any Hugging Face model: attn_implementation="antiphase".

Importing `antiphase.models` registers the function with transformers' attention interface. It
computes the model's own standard attention, so weights and outputs stay the same.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from antiphase.ops import attention

NAME = "antiphase"
_ONLY_SDPA = ("position_bias", "cache")  # arguments: a bias for each pair of positions, pages


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
            bias or a paged cache goes to transformers' `sdpa`; other arguments say nothing new.

    Returns:
        [B, T, h, dv], and None for the attention weights.
    """
    if any(kwargs.get(name) is not None for name in _ONLY_SDPA):
        options = {"dropout": dropout, "scaling": scaling, "is_causal": is_causal, **kwargs}
        out: tuple[Tensor, None] = ALL_ATTENTION_FUNCTIONS["sdpa"](
            module, query, key, value, attention_mask, **options
        )
        return out
    device = query.device.type
    if torch.is_autocast_enabled(device):  # as PyTorch does for its own: RoPE's q and k are fp32
        dtype = torch.get_autocast_dtype(device)
        query, key, value = (t.to(dtype) for t in (query, key, value))
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


def use_fused_attention(model: PreTrainedModel) -> None:
    """Let a model that would call PyTorch's kernel on a CPU call ours, in place."""
    if model.device.type == "cpu" and model.config._attn_implementation == "sdpa":
        model.set_attn_implementation(NAME)


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, sdpa_mask)
