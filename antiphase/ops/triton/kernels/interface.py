"""Differential and standard attention as plain functions with gradients, for other packages.

`antiphase.ops` validates more, takes packed documents and chooses among several backends.
"""

from typing import Any

import torch
from torch import Tensor

from . import launch
from .visibility import visibility


def diff_attention(
    q1: Tensor,
    k1: Tensor,
    q2: Tensor,
    k2: Tensor,
    v: Tensor,
    lam: Tensor | float,
    *,
    causal: bool = False,
    tokens: Tensor | None = None,
    window: int = 0,
    keep_first: int = 0,
    scale: float | None = None,
    scale2: float | None = None,
) -> Tensor:
    """Compute (softmax(q1 k1^T / sqrt(d)) - lam softmax(q2 k2^T / sqrt(d2))) v on a GPU.

    Args:
        q1: Signal queries [B, H, Tq, d], d up to 128.
        k1: Signal keys [B, Hkv, Tk, d]. Hkv divides H.
        q2: Noise queries [B, Hn, Tq, d2]. Hn divides H.
        k2: Noise keys [B, Hkv_n, Tk, d2]. Hkv_n divides Hn.
        v: Values [B, Hkv, Tk, dv], dv up to 256.
        lam: A number, or a tensor that broadcasts to [B, H, Tq, 1].
        causal: Mask the future, aligned to the last key.
        tokens: True for keys that are no padding [B, Tk].
        window: Number of keys that a row sees, its own the last (needs `causal`); 0: all.
        keep_first: With a window, the first keys that stay visible.
        scale: Factor of the signal scores, default d**-0.5.
        scale2: Factor of the noise scores, default d2**-0.5.

    Returns:
        The output [B, H, Tq, dv].
    """
    lam = torch.as_tensor(lam, dtype=torch.float32, device=q1.device)
    lam = lam.expand(*q1.shape[:3], 1)
    seen = _seen(q1, k1, causal, tokens, window, keep_first)
    scales = (scale or q1.shape[-1] ** -0.5, scale2 or q2.shape[-1] ** -0.5)
    return _run(q1, k1, q2, None if k2 is k1 else k2, v, lam, None, seen, *scales)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    sink: Tensor | None = None,
    causal: bool = False,
    tokens: Tensor | None = None,
    window: int = 0,
    keep_first: int = 0,
    scale: float | None = None,
) -> Tensor:
    """Compute softmax(q k^T / sqrt(d)) v on a GPU, with values of any width up to 256.

    Args:
        q: Queries [B, H, Tq, d], d up to 128.
        k: Keys [B, Hkv, Tk, d]. Hkv divides H.
        v: Values [B, Hkv, Tk, dv].
        sink: Logit per head [H] that is added to the softmax denominator.
        causal: Mask the future, aligned to the last key.
        tokens: True for keys that are no padding [B, Tk].
        window: Number of keys that a row sees, its own the last (needs `causal`); 0: all.
        keep_first: With a window, the first keys that stay visible.
        scale: Factor of the scores, default d**-0.5.

    Returns:
        The output [B, H, Tq, dv].
    """
    seen = _seen(q, k, causal, tokens, window, keep_first)
    scale = scale or q.shape[-1] ** -0.5
    sink = None if sink is None else sink.float()
    return _run(q, k, None, None, v, None, sink, seen, scale, scale)


def attention_forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **options: Any,
) -> tuple[Tensor, None]:
    """Compute a layer's attention as transformers calls it.

    With `attn_implementation="REPOSITORY:attention_forward"`.

    Args:
        module: The layer; says whether it is causal.
        query: Queries [B, H, Tq, d].
        key: Keys [B, Hkv, Tk, d].
        value: Values [B, Hkv, Tk, dv].
        attention_mask: None, or True for keys that are no padding, [B, Tk] or [B, 1, 1, Tk].
        scaling: Factor of the scores.
        dropout: Must be 0.
        **options: `is_causal` and `sliding_window` are used.

    Returns:
        The output [B, Tq, H, dv], and no map.

    Raises:
        ValueError: If the mask is not one of padding, or with dropout.
    """
    if dropout:
        raise ValueError(f"dropout: got {dropout}, expected 0; these kernels have none")
    tokens = attention_mask
    if tokens is not None and tokens.dim() == 4 and tokens.shape[1:3] == (1, 1):
        tokens = tokens[:, 0, 0]
    if tokens is not None and (tokens.dim() != 2 or tokens.dtype.is_floating_point):
        raise ValueError(
            f"attention_mask: got {tokens.dtype} {list(tokens.shape)}, expected None or the "
            "padding as booleans [B, Tk]"
        )
    causal = options.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    causal = bool(causal) and query.shape[2] > 1
    window = (options.get("sliding_window") or 0) if causal else 0
    tokens = None if tokens is None else tokens.bool()
    out = attention(
        query, key, value, causal=causal, tokens=tokens, window=window, scale=scaling
    )  # fmt: skip
    return out.transpose(1, 2), None


def _seen(
    q: Tensor, k: Tensor, causal: bool, tokens: Tensor | None, window: int, keep_first: int
) -> Any:
    if window and not causal:
        raise ValueError(f"window: got {window} with causal=False, but a window ends at the query")
    options = {"causal": causal, "window": window, "keep_first": keep_first, "tokens": tokens}
    return visibility(q.shape[2], k.shape[2], q.device, **options)  # type: ignore[arg-type]


def _run(*inputs: Any) -> Tensor:
    heads = [t if t is None or t.stride(-1) == 1 else t.contiguous() for t in inputs[:5]]
    inputs = (*heads, *inputs[5:])
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs[:7]):
        out: Tensor = _Attention.apply(*inputs)  # type: ignore[no-untyped-call]
        return out
    return launch.forward(launch.Call(*inputs), save=False)[0]


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        out, noise, stats = launch.forward(launch.Call(*inputs), save=True)
        ctx.save_for_backward(*inputs[:7], out, noise, stats)
        ctx.options = inputs[7:]
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, out, noise, stats = ctx.saved_tensors
        grads = launch.backward(launch.Call(*tensors, *ctx.options), dout, out, noise, stats)
        return *grads, None, None, None
