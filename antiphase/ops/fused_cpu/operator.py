"""The `torch.library` operators of fused attention: forward, backward, shapes and FLOPs.

As operators, they appear as one node to `torch.compile`, `torch.export` and the FLOP counter. Which
level runs, C++ or Python, is decided inside, call by call.
"""

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from antiphase.ops.arguments import Arguments, statistics_dtype
from antiphase.ops.fused_cpu import abi, blocks, native
from antiphase.ops.fused_cpu.level import why_python


def forward(args: Arguments) -> Tensor:
    """Return the output [B, H, Tq, dv]."""
    q2, k2, _ = args.pairs[1] if args.q2 is not None else (None, None, 0.0)
    tensors = (args.q1, args.k1, q2, k2, args.v, args.lam, args.sink, args.mask)
    out: Tensor = _forward(*tensors, args.causal, args.scale1, args.scale2)[0]
    return out


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
    """Return the output and the base-2 log-sum-exp [B, H, Tq] of both maps."""
    args = Arguments(q1, k1, q2, k2, v, lam, sink, mask, causal, scale1, scale2)
    if why_python(args) is None:
        return abi.forward(native.library(), args)
    return blocks.forward(args)


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
    """Return the gradients of the tensors that were given; of lam and sink, per row."""
    args = Arguments(q1, k1, q2, k2, v, lam, sink, mask, causal, scale1, scale2)
    if why_python(args) is None:
        grads = abi.backward(native.library(), args, dout, lse1, lse2)
    else:
        grads = blocks.backward(args, dout)
    return [grad for grad in grads if grad is not None]


@_backward.register_fake
def _(dout, q1, k1, q2, k2, v, lam, sink, mask, lse1, lse2, causal, scale1, scale2):  # type: ignore[no-untyped-def]
    inputs = [t for t in (q1, k1, q2, k2, v) if t is not None]
    per_row = [lse1.new_empty(*lse1.shape, 1) for t in (lam, sink) if t is not None]
    return [t.new_empty(t.shape) for t in inputs] + per_row


def _save(ctx, inputs, output):  # type: ignore[no-untyped-def]
    *tensors, ctx.causal, ctx.scale1, ctx.scale2 = inputs
    _, lse1, lse2 = output
    ctx.mark_non_differentiable(lse1, lse2)
    ctx.save_for_backward(*tensors, lse1, lse2)


def _differentiate(ctx, dout, *_):  # type: ignore[no-untyped-def]
    q1, k1, q2, k2, v, lam, sink, mask, lse1, lse2 = ctx.saved_tensors
    grads = iter(
        _backward(
            *(dout, q1, k1, q2, k2, v, lam, sink, mask, lse1, lse2),
            *(ctx.causal, ctx.scale1, ctx.scale2),
        )
    )
    dq1, dk1, dq2, dk2, dv, dlam, dsink = (
        None if t is None else next(grads) for t in (q1, k1, q2, k2, v, lam, sink)
    )
    if dsink is not None:
        dsink = dsink.sum((0, 2, 3))
    return dq1, dk1, dq2, dk2, dv, dlam, dsink, None, None, None, None


def _no_second_derivative(ctx, *_):  # type: ignore[no-untyped-def]
    raise RuntimeError(
        "antiphase's fused_cpu backend has no second derivatives; "
        "use backend='reference', which is plain autograd"
    )


_forward.register_autograd(_differentiate, setup_context=_save)
_backward.register_autograd(_no_second_derivative)


@_forward.register_vmap
def _(info, in_dims, *args):  # type: ignore[no-untyped-def]
    raise RuntimeError(
        "antiphase's fused_cpu backend does not support vmap; put the mapped dimension into the "
        "batch dimension, or use backend='reference'"
    )


def _flops(q1: torch.Size, q2: torch.Size | None, v: torch.Size, products: tuple[int, int]) -> int:
    """Count two FLOPs per multiply-add over the complete map, as PyTorch does for its attention.

    `products`: the number of products with the width of the scores and with the width of V.
    """
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
