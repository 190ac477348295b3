"""The `torch.library` operators of fused attention: forward, backward, shapes and FLOPs.

As operators, they appear as one node to `torch.compile`, `torch.export` and the FLOP counter. Which
level runs, C++ or Python, is decided inside, call by call.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from antiphase.ops import reference
from antiphase.ops.arguments import Arguments, statistics_dtype
from antiphase.ops.flops import attention_flops
from antiphase.ops.fused_cpu import abi, blocks, native
from antiphase.ops.fused_cpu.checks import check_gradient_sizes, check_sizes, check_transforms
from antiphase.ops.fused_cpu.decode import decode
from antiphase.ops.fused_cpu.eager import is_eager
from antiphase.ops.fused_cpu.level import why_python

_TENSORS = 10  # the arguments of `_forward` that are tensors; they come first


def forward(args: Arguments) -> Tensor:
    """Return the output [B, H, Tq, dv]."""
    pairs = (args.q1, args.k1, args.q2, args.k2, args.v)
    tensors = (*pairs, args.lam, args.sink, args.mask, args.documents, args.seed)
    visible = (args.causal, args.window, args.keep_first)
    options = (*visible, args.dropout, args.softcap, args.scale1, args.scale2)
    out: Tensor
    given = [t for t in tensors if t is not None]
    if _decodes_compiled(args):
        out = torch.ops.antiphase.decode(
            *pairs, args.lam, args.mask, *visible, args.scale1, args.scale2
        )
    elif not args.q1.shape[0] or not is_eager(*given):
        out = _forward(*tensors, *options)[0]
    elif torch.is_grad_enabled() and any(t.requires_grad for t in given):
        out = _Eager.apply(*tensors, *options)[0]  # type: ignore[no-untyped-call]
    else:
        out = _run(args)[0]
    return out


def _run(args: Arguments) -> tuple[Tensor, Tensor]:
    if why_python(args) is None:
        return abi.forward(native.library(), args)
    return blocks.forward(args)


def _arguments(*inputs: Any) -> Arguments:
    """Return the arguments of `_forward`, in its order, as `Arguments`."""
    q1, k1, q2, k2, v, lam, sink, mask, documents, seed = inputs[:_TENSORS]
    causal, window, keep_first, dropout, softcap, scale1, scale2 = inputs[_TENSORS:]
    return Arguments(
        *(q1, k1, q2, k2, v, lam, sink, mask, causal, scale1, scale2),
        *(documents, seed, window, keep_first, dropout, softcap),
    )


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
    documents: Tensor | None,
    seed: Tensor | None,
    causal: bool,
    window: int,
    keep_first: int,
    dropout: float,
    softcap: float,
    scale1: float,
    scale2: float,
) -> tuple[Tensor, Tensor]:
    """Return the output and the row statistics [2 * maps, B, H, Tq] for the backward pass."""
    args = _arguments(
        *(q1, k1, q2, k2, v, lam, sink, mask, documents, seed),
        *(causal, window, keep_first, dropout, softcap, scale1, scale2),
    )
    check_transforms()
    check_sizes(args)
    return _run(args) if q1.shape[0] else _empty_results(q1, q2, v)


def _empty_results(q1: Tensor, q2: Tensor | None, v: Tensor) -> tuple[Tensor, Tensor]:
    B, H, Tq, _ = q1.shape
    statistics = (2 if q2 is None else 4, B, H, Tq)
    return (
        q1.new_empty(B, H, Tq, v.shape[-1]),
        q1.new_empty(statistics, dtype=statistics_dtype(q1.dtype)),
    )


@_forward.register_fake
def _(q1, k1, q2, k2, v, *args):  # type: ignore[no-untyped-def]
    return _empty_results(q1, q2, v)


def _decodes_compiled(args: Arguments) -> bool:
    """Tell whether a compiled program gets the operator with little overhead: one query row."""
    extended = args.sink is not None or args.documents is not None or args.seed is not None
    return (
        torch.compiler.is_compiling()
        and not torch.compiler.is_exporting()
        and not torch.is_grad_enabled()
        and args.q1.shape[2] == 1
        and not extended
        and not args.softcap
    )


def _decode(
    q1: Tensor,
    k1: Tensor,
    q2: Tensor | None,
    k2: Tensor | None,
    v: Tensor,
    lam: Tensor | None,
    mask: Tensor | None,
    causal: bool,
    window: int,
    keep_first: int,
    scale1: float,
    scale2: float,
) -> Tensor:
    """Return the output of one query row per head, without gradients."""
    keys2 = k1 if q2 is not None and k2 is None else k2
    visible = (causal, scale1, scale2, window or None, keep_first)
    out = decode(q1, k1, q2, keys2, v, lam, mask, *visible)
    if out is not None:
        return out
    tensors = (q1, k1, q2, k2, v, lam, None, mask, None, None)
    return _forward(*tensors, causal, window, keep_first, 0.0, 0.0, scale1, scale2)[0]


# Below `custom_op`, whose calls take as long as the attention of one query.
_operators = torch.library.Library("antiphase", "FRAGMENT")
_operators.define(
    "decode(Tensor q1, Tensor k1, Tensor? q2, Tensor? k2, Tensor v, Tensor? lam, Tensor? mask, "
    "bool causal, int window, int keep_first, float scale1, float scale2) -> Tensor"
)
_operators.impl("decode", _decode, "CPU")


@torch.library.register_fake("antiphase::decode")  # type: ignore[untyped-decorator]
def _(q1: Tensor, k1: Tensor, q2: Tensor | None, k2: Tensor | None, v: Tensor, *_: Any) -> Tensor:
    return q1.new_empty(*q1.shape[:3], v.shape[-1])


@torch.library.custom_op("antiphase::fused_attention_backward", mutates_args=(), device_types="cpu")
def _backward(
    dout: Tensor,
    stats: Tensor,
    q1: Tensor,
    k1: Tensor,
    q2: Tensor | None,
    k2: Tensor | None,
    v: Tensor,
    lam: Tensor | None,
    sink: Tensor | None,
    mask: Tensor | None,
    documents: Tensor | None,
    seed: Tensor | None,
    causal: bool,
    window: int,
    keep_first: int,
    dropout: float,
    softcap: float,
    scale1: float,
    scale2: float,
) -> list[Tensor]:
    """Return the gradients of the tensors that were given; of lam and sink, per row."""
    args = _arguments(
        *(q1, k1, q2, k2, v, lam, sink, mask, documents, seed),
        *(causal, window, keep_first, dropout, softcap, scale1, scale2),
    )
    check_transforms()
    check_sizes(args)
    check_gradient_sizes(args, dout, stats)
    if not q1.shape[0]:
        return _empty_gradients(stats, q1, k1, q2, k2, v, lam, sink)
    if why_python(args) is None:
        grads = abi.backward(native.library(), args, dout, stats)
    else:
        grads = blocks.backward(args, dout)
    return [grad for grad in grads if grad is not None]


def _empty_gradients(stats: Tensor, *tensors: Tensor | None) -> list[Tensor]:
    *given, lam, sink = tensors
    inputs = [t for t in given if t is not None]
    per_row = [stats.new_empty(*stats.shape[1:], 1) for t in (lam, sink) if t is not None]
    return [t.new_empty(t.shape) for t in inputs] + per_row


@_backward.register_fake
def _(dout, stats, q1, k1, q2, k2, v, lam, sink, *args):  # type: ignore[no-untyped-def]
    return _empty_gradients(stats, q1, k1, q2, k2, v, lam, sink)


def _save(ctx, inputs, output):  # type: ignore[no-untyped-def]
    tensors, ctx.options = inputs[:_TENSORS], inputs[_TENSORS:]
    stats = output[1]
    ctx.mark_non_differentiable(stats)
    ctx.save_for_backward(*tensors, stats)


def _differentiate(ctx, dout, _):  # type: ignore[no-untyped-def]
    *tensors, stats = ctx.saved_tensors
    q1, k1, q2, k2, v, lam, sink, *_ = tensors
    without_gradient = (None,) * (3 + len(ctx.options))
    if torch._C._functorch.is_legacy_batchedtensor(dout):
        return *_batched_gradients(dout, tensors, ctx.options), *without_gradient
    grads = iter(_backward(dout, stats, *tensors, *ctx.options))
    *inputs, dsink = (None if t is None else next(grads) for t in (q1, k1, q2, k2, v, lam, sink))
    if dsink is not None:
        dsink = dsink.sum((0, 2, 3))
    return *inputs, dsink, *without_gradient


def _batched_gradients(
    dout: Tensor, tensors: list[Tensor | None], options: tuple[Any, ...]
) -> list[Tensor | None]:
    """Return the gradients for several `dout` at once (`is_grads_batched`), by the formula."""
    leaves = [None if t is None else t.detach().requires_grad_() for t in tensors[:7]]
    with torch.enable_grad():
        out = reference.forward(_arguments(*leaves, *tensors[7:], *options))
    given = [t for t in leaves if t is not None]
    grads = iter(torch.autograd.grad(out, given, dout))
    return [None if t is None else next(grads) for t in leaves]


def _no_second_derivative(ctx, *_):  # type: ignore[no-untyped-def]
    raise RuntimeError(
        "antiphase's fused_cpu backend has no second derivatives; "
        "use backend='reference', which is plain autograd"
    )


class _Eager(torch.autograd.Function):
    """The forward operator outside the dispatcher; its gradient is the same."""

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, Tensor]:
        return _run(_arguments(*inputs))

    setup_context = staticmethod(_save)
    backward = staticmethod(_differentiate)


_forward.register_autograd(_differentiate, setup_context=_save)
_backward.register_autograd(_no_second_derivative)


@_forward.register_vmap
def _(info, in_dims, *args):  # type: ignore[no-untyped-def]
    raise RuntimeError(
        "antiphase's fused_cpu backend does not support vmap; put the mapped dimension into the "
        "batch dimension, or use backend='reference'"
    )


@register_flop_formula([torch.ops.antiphase.fused_attention, torch.ops.antiphase.decode])
def _(q1, k1, q2, k2, v, *args, **kwargs):  # type: ignore[no-untyped-def]
    return attention_flops(q1, q2, v, (1, 1))


@register_flop_formula(torch.ops.antiphase.fused_attention_backward)
def _(dout, stats, q1, k1, q2, k2, v, *args, **kwargs):  # type: ignore[no-untyped-def]
    return attention_flops(q1, q2, v, (3, 2))
