"""Fused attention on a CPU, at two levels: C++ (`csrc/`) and Python (`blocks.py`).

Registered with `torch.library`, so that `torch.compile`, `torch.export` and the FLOP counter see
one operator; which level runs is settled inside it, call by call.
"""

import contextlib
import functools
import warnings
from collections.abc import Iterator
from contextvars import ContextVar

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from antiphase.ops.arguments import Arguments, statistics_dtype
from antiphase.ops.fused_cpu import abi, blocks, native

_python_only: ContextVar[bool] = ContextVar("antiphase_python_only", default=False)


@contextlib.contextmanager
def python_level() -> Iterator[None]:
    """Use the Python level inside this block, forward and backward (to measure or to test it)."""
    token = _python_only.set(True)
    try:
        yield
    finally:
        _python_only.reset(token)


def uncovered(a: Arguments) -> str | None:
    """Say why the C++ level was not built for such arguments; None if it was."""
    if a.q1.dtype not in abi.DTYPES:
        return f"{a.q1.dtype} is not built"
    if a.mask is not None:
        return "masks are not built"
    widths = [a.q1.shape[-1], a.v.shape[-1]] + ([] if a.q2 is None else [a.q2.shape[-1]])
    if any(width % 8 for width in widths):
        return f"widths {widths} are not multiples of 8"
    if a.q2 is not None and a.k2 is not None:
        heads = (a.q2.shape[1], a.k2.shape[1])
        if heads != (a.q1.shape[1], a.k1.shape[1]):
            return "noise heads differ from signal heads"
    return None


def native_refusal(a: Arguments) -> str | None:
    """Say why the C++ level does not serve these arguments here and now; None if it does."""
    if _python_only.get():
        return "asked for by python_level()"
    return uncovered(a) or _unavailable()


@functools.cache
def _unavailable() -> str | None:
    """Say why there is no C++ level on this machine, with one warning; None if there is."""
    try:
        native.library()
    except native.Unavailable as reason:
        warnings.warn(
            f"antiphase runs its slower Python level: {reason}", RuntimeWarning, stacklevel=2
        )
        return str(reason)
    return None


def level(a: Arguments) -> tuple[str, str]:
    """Return the level that serves these arguments ("c++" or "python") and why."""
    refusal = native_refusal(a)
    return ("c++", "covers these arguments") if refusal is None else ("python", refusal)


@torch.library.custom_op("antiphase::fused_attention", mutates_args=(), device_types="cpu")
def _forward(
    q1: Tensor,
    k1: Tensor,
    q2: Tensor | None,
    k2: Tensor | None,
    v: Tensor,
    lam: Tensor | None,
    sink: Tensor | None,
    mask: Tensor | None,
    causal: bool,
    scale1: float,
    scale2: float,
) -> tuple[Tensor, Tensor, Tensor]:
    a = Arguments(q1, k1, q2, k2, v, lam, sink, mask, causal, scale1, scale2)
    if native_refusal(a) is None:
        return abi.forward(native.library(), a)
    return blocks.forward(a)


@_forward.register_fake
def _(q1, k1, q2, k2, v, lam, sink, mask, causal, scale1, scale2):  # type: ignore[no-untyped-def]
    B, H, Tq, _ = q1.shape
    lse = q1.new_empty(B, H, Tq, dtype=statistics_dtype(q1.dtype))
    return (
        q1.new_empty(B, H, Tq, v.shape[-1]),
        lse,
        torch.empty_like(lse) if q2 is not None else lse.new_empty(0),
    )


@torch.library.custom_op("antiphase::fused_attention_backward", mutates_args=(), device_types="cpu")
def _backward(
    dout: Tensor,
    q1: Tensor,
    k1: Tensor,
    q2: Tensor | None,
    k2: Tensor | None,
    v: Tensor,
    lam: Tensor | None,
    sink: Tensor | None,
    mask: Tensor | None,
    lse1: Tensor,
    lse2: Tensor,
    causal: bool,
    scale1: float,
    scale2: float,
) -> list[Tensor]:
    a = Arguments(q1, k1, q2, k2, v, lam, sink, mask, causal, scale1, scale2)
    if native_refusal(a) is None:
        grads = abi.backward(native.library(), a, dout, lse1, lse2)
    else:
        grads = blocks.backward(a, dout)
    return [g for g in grads if g is not None]


@_backward.register_fake
def _(dout, q1, k1, q2, k2, v, lam, sink, mask, lse1, lse2, causal, scale1, scale2):  # type: ignore[no-untyped-def]
    inputs = [t for t in (q1, k1, q2, k2, v) if t is not None]
    rows = [lse1.new_empty(*lse1.shape, 1) for t in (lam, sink) if t is not None]
    return [t.new_empty(t.shape) for t in inputs] + rows


def _save(ctx, inputs, output):  # type: ignore[no-untyped-def]
    *tensors, ctx.causal, ctx.scale1, ctx.scale2 = inputs
    _, lse1, lse2 = output
    ctx.mark_non_differentiable(lse1, lse2)
    ctx.save_for_backward(*tensors, lse1, lse2)


def _differentiate(ctx, dout, *_):  # type: ignore[no-untyped-def]
    q1, k1, q2, k2, v, lam, sink, mask, lse1, lse2 = ctx.saved_tensors
    found = iter(
        _backward(
            *(dout, q1, k1, q2, k2, v, lam, sink, mask, lse1, lse2),
            *(ctx.causal, ctx.scale1, ctx.scale2),
        )
    )
    dq1, dk1, dq2, dk2, dv, dlam, dsink = (
        None if t is None else next(found) for t in (q1, k1, q2, k2, v, lam, sink)
    )
    if dsink is not None:
        dsink = dsink.sum((0, 2, 3))
    return dq1, dk1, dq2, dk2, dv, dlam, dsink, None, None, None, None


def _refuse_second(ctx, *_):  # type: ignore[no-untyped-def]
    raise RuntimeError(
        "antiphase's fused_cpu backend has no second derivatives; "
        "use backend='reference', which is plain autograd"
    )


_forward.register_autograd(_differentiate, setup_context=_save)
_backward.register_autograd(_refuse_second)


@_forward.register_vmap
def _(info, in_dims, *args):  # type: ignore[no-untyped-def]
    raise RuntimeError(
        "antiphase's fused_cpu backend does not support vmap; put the mapped dimension into the "
        "batch dimension, or use backend='reference'"
    )


def _flops(q1: torch.Size, q2: torch.Size | None, v: torch.Size, products: tuple[int, int]) -> int:
    """Count multiply-adds twice, over the whole map, as PyTorch does for its own attention."""
    B, H, Tq, d = q1
    Tk, dv = v[2:]
    score, value = products
    flops = B * H * Tq * Tk * (d * score + dv * value)
    if q2 is not None:
        flops += B * q2[1] * Tq * Tk * q2[3] * score
    return 2 * flops


@register_flop_formula(torch.ops.antiphase.fused_attention)
def _(q1, k1, q2, k2, v, *args, **kwargs):  # type: ignore[no-untyped-def]
    return _flops(q1, q2, v, (1, 1))


@register_flop_formula(torch.ops.antiphase.fused_attention_backward)
def _(dout, q1, k1, q2, k2, v, *args, **kwargs):  # type: ignore[no-untyped-def]
    return _flops(q1, q2, v, (3, 2))


def forward(a: Arguments) -> Tensor:
    """Return the output [B, H, Tq, dv]."""
    out: Tensor = _forward(
        *(a.q1, a.k1, a.q2, a.k2, a.v, a.lam, a.sink, a.mask), *(a.causal, a.scale1, a.scale2)
    )[0]
    return out
