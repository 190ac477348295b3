"""Attention with its logits in few bits: does a model rest on large ones?"""

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

from antiphase.analysis.capture import attention_logits
from antiphase.attention import Attention
from antiphase.attention.heads import Heads
from antiphase.attention.masking import Masking
from antiphase.models import AntiphaseForCausalLM
from antiphase.ops import repeat_heads


def absmax_quantised(scores: Tensor, bits: int) -> Tensor:
    """Round each head's logits to 2^bits - 1 equal steps from minus to plus its largest magnitude.

    Args:
        scores: [B, h, Tq, Tk]; -inf (masked) stays.
        bits: at least 2.
    """
    seen = scores > -torch.inf
    largest = scores.masked_fill(~seen, 0.0).abs().amax((-2, -1), keepdim=True)
    step = largest.clamp_min(torch.finfo(scores.dtype).tiny) / (2 ** (bits - 1) - 1)
    return (scores / step).round() * step


@contextlib.contextmanager
def low_bit_logits(model: AntiphaseForCausalLM, bits: int | None) -> Iterator[None]:
    """Quantise the attention logits of every layer while the context is open.

    Args:
        model: one of our models, whose maps are softmaxes of scaled products, without a window.
        bits: of the logits; None for all of them, which changes nothing.

    Raises:
        ValueError: a mechanism whose maps are something else.
    """
    layers = list(model.model.attention_layers)
    for layer in layers:
        if not layer.has_softmax or layer.name not in ("standard", "diff_v1", "diff_v2", "gated"):
            raise ValueError(
                f"low_bit_logits: got {layer.name}, expected standard, diff_v1, diff_v2 or gated"
            )
        if layer.window is not None:
            raise ValueError("low_bit_logits: got a layer with a window, expected none")
        layer.attend = _attend(layer, bits)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for layer in layers:
            del layer.attend


def _attend(layer: Attention, bits: int | None):  # type: ignore[no-untyped-def]
    def attend(heads: Heads, masking: Masking, backend: str) -> Tensor:
        maps = layer.maps(heads, masking)
        h = maps["signal"].shape[1]

        def quantised_map(q: Tensor, k: Tensor) -> Tensor:
            s = repeat_heads(attention_logits(q, k, layer.softcap), h)
            future = torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).triu(1)
            s = s.masked_fill(future, -torch.inf)
            return (s if bits is None else absmax_quantised(s, bits)).softmax(-1)

        A = quantised_map(heads.q, heads.k)
        if heads.q2 is not None:
            keys = heads.k if heads.k2 is None else heads.k2
            A = layer.applied_map({**maps, "signal": A, "noise": quantised_map(heads.q2, keys)})
        return (A @ repeat_heads(heads.v, h).to(A.dtype)).to(heads.v.dtype)

    return attend
