"""The `torch.library` operators of the Triton kernels: forward, backward, shapes and FLOPs.

As operators, they appear as one node to `torch.compile`, `torch.export` and the FLOP counter. On a
device where the kernels failed their first check, an operator computes by `sdpa` instead.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from antiphase.ops import sdpa
from antiphase.ops.arguments import Arguments
from antiphase.ops.flops import attention_flops
from antiphase.ops.triton import coverage

if TYPE_CHECKING:
    from antiphase.ops.triton.kernels.launch import Call

_TENSORS = 9  # the arguments of `_forward` that are tensors; they come first
_DIFFERENTIABLE = 7


def forward(args: Arguments) -> Tensor:
    """Return the output [B, H, Tq, dv]."""
    pairs = (args.q1, args.k1, args.q2, args.k2, args.v)
    tensors = (*pairs, args.lam, args.sink, coverage.tokens(args), args.documents)
    options = (args.causal, args.window, args.keep_first, args.scale1, args.scale2)
    save = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    out: Tensor = _forward(*tensors, *options, save)[0]
    return out


@torch.library.custom_op("antiphase::triton_attention", mutates_args=())
def _forward(
    q1: Tensor,
    k1: Tensor,
    q2: Tensor | None,
    k2: Tensor | None,
    v: Tensor,
    lam: Tensor | None,
    sink: Tensor | None,
    tokens: Tensor | None,
    documents: Tensor | None,
    causal: bool,
    window: int,
    keep_first: int,
    scale1: float,
    scale2: float,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the output; with `save` also A2 V and the log-sum-exps for the backward pass."""
    inputs = (q1, k1, q2, k2, v, lam, sink, tokens, documents)
    options = (causal, window, keep_first, scale1, scale2)
    args = _arguments(*inputs, *options)
    _check(args)
    if not q1.shape[0]:
        return _empty_results(q1, q2, v, save)
    if _wrong_here(q1):
        _, noise, stats = _empty_results(q1, q2, v, save)
        return sdpa.forward(args).contiguous(), noise.zero_(), stats.zero_()
    from antiphase.ops.triton.kernels import launch

    return launch.forward(as_call(args), save)


def _arguments(*inputs: Any) -> Arguments:
    """Return the arguments of `_forward` but the last, in its order, as `Arguments`."""
    q1, k1, q2, k2, v, lam, sink, tokens, documents = inputs[:_TENSORS]
    causal, window, keep_first, scale1, scale2 = inputs[_TENSORS:]
    mask = None if tokens is None else tokens[:, None, None]
    return Arguments(
        *(q1, k1, q2, k2, v, lam, sink, mask, causal, scale1, scale2),
        documents=documents,
        window=window,
        keep_first=keep_first,
    )


def as_call(args: Arguments) -> "Call":
    """Return covered arguments in the form that the kernels take."""
    from antiphase.ops.triton.kernels.launch import Call
    from antiphase.ops.triton.kernels.visibility import visibility

    def channels_together(t: Tensor | None) -> Any:
        return t if t is None or t.stride(-1) == 1 else t.contiguous()

    seen = visibility(
        args.q1.shape[2],
        args.k1.shape[2],
        args.q1.device,
        causal=args.causal,
        window=args.window,
        keep_first=args.keep_first,
        documents=args.documents,
        tokens=coverage.tokens(args),
    )
    q1, k1, q2, k2, v = map(channels_together, (args.q1, args.k1, args.q2, args.k2, args.v))
    return Call(q1, k1, q2, k2, v, args.lam, args.sink, seen, args.scale1, args.scale2)


def _check(args: Arguments) -> None:
    """Raise unless sizes agree: programs and direct calls were not validated before."""
    if (reason := coverage.uncovered(args)) is not None:
        raise ValueError(f"triton_attention: {reason}")
    q1, k1, q2, k2, v = args.q1, args.k1, args.q2, args.k2, args.v
    (B, H, Tq, d), (Hkv, Tk) = q1.shape, k1.shape[1:3]
    if (q2 is None) != (args.lam is None) or (k2 is not None and q2 is None):
        raise ValueError("triton_attention: q2 and lam are given together, k2 only with them")
    expected: dict[str, tuple[Tensor | None, tuple[int, ...]]] = {
        "k1": (k1, (B, Hkv, Tk, d)),
        "v": (v, (B, Hkv, Tk, v.shape[-1])),
        "lam": (args.lam, (B, H, Tq, 1)),
        "sink": (args.sink, (H,)),
        "documents": (args.documents, (B, Tq, 2)),
    }
    heads = [(H, Hkv)]
    if q2 is not None:
        keys2 = k1 if k2 is None else k2
        expected["q2"] = (q2, (B, q2.shape[1], Tq, keys2.shape[-1]))
        expected["k2"] = (keys2, (B, keys2.shape[1], Tk, q2.shape[-1]))
        heads += [(H, q2.shape[1]), (q2.shape[1], keys2.shape[1])]
    if args.mask is not None:
        batch = args.mask.shape[0]
        expected["tokens"] = (args.mask, (batch if batch == 1 else B, 1, 1, Tk))
    for name, (t, shape) in expected.items():
        if t is not None and (t.shape != shape or t.device != q1.device):
            raise ValueError(
                f"triton_attention: {name} is {list(t.shape)} on {t.device}, expected "
                f"{list(shape)} on {q1.device}"
            )
    if any(n % m for n, m in heads):
        raise ValueError(f"triton_attention: numbers of heads do not divide each other: {heads}")


def _wrong_here(q1: Tensor) -> bool:
    """Tell whether the kernels failed their check on this device."""
    if q1.device.type != "cuda":
        return False
    from antiphase.ops.triton.self_check import failure

    return failure(q1.device, q1.dtype) is not None


def _empty_results(
    q1: Tensor, q2: Tensor | None, v: Tensor, save: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return tensors of the results' shapes; without `save`, only the output has elements."""
    B, H, Tq, _ = q1.shape
    maps = 1 if q2 is None else 2
    shape = (B, H, Tq, v.shape[-1])
    noise = shape if save and maps == 2 else (0,)
    stats = (maps, B, H, Tq) if save else (0,)
    return q1.new_empty(shape), q1.new_empty(noise), q1.new_empty(stats, dtype=torch.float32)


@_forward.register_fake
def _(q1, k1, q2, k2, v, *args):  # type: ignore[no-untyped-def]
    return _empty_results(q1, q2, v, args[-1])


@torch.library.custom_op("antiphase::triton_attention_backward", mutates_args=())
def _backward(
    dout: Tensor,
    out: Tensor,
    noise: Tensor,
    stats: Tensor,
    q1: Tensor,
    k1: Tensor,
    q2: Tensor | None,
    k2: Tensor | None,
    v: Tensor,
    lam: Tensor | None,
    sink: Tensor | None,
    tokens: Tensor | None,
    documents: Tensor | None,
    causal: bool,
    window: int,
    keep_first: int,
    scale1: float,
    scale2: float,
) -> list[Tensor]:
    """Return the gradients of the tensors that were given: q1, k1, q2, k2, v, lam, sink."""
    inputs = (q1, k1, q2, k2, v, lam, sink, tokens, documents)
    args = _arguments(*inputs, causal, window, keep_first, scale1, scale2)
    _check(args)
    if not q1.shape[0]:
        return [torch.zeros_like(t) for t in inputs[:_DIFFERENTIABLE] if t is not None]
    if _wrong_here(q1):
        return _gradients_of(sdpa.forward, inputs, args, dout)
    from antiphase.ops.triton.kernels import launch

    grads = launch.backward(as_call(args), dout, out, noise, stats)
    return [grad for grad in grads if grad is not None]


def _gradients_of(function: Any, inputs: tuple[Any, ...], args: Arguments, dout: Tensor) -> Any:
    """Return the gradients of the given inputs by automatic differentiation."""
    leaves = [t if t is None else t.detach().requires_grad_() for t in inputs[:_DIFFERENTIABLE]]
    options = (args.causal, args.window, args.keep_first, args.scale1, args.scale2)
    with torch.enable_grad():
        result = function(_arguments(*leaves, *inputs[_DIFFERENTIABLE:], *options))
    return list(torch.autograd.grad(result, [t for t in leaves if t is not None], dout))


@_backward.register_fake
def _(dout, out, noise, stats, *inputs):  # type: ignore[no-untyped-def]
    given = [t for t in inputs[:_DIFFERENTIABLE] if t is not None]
    return [t.new_empty(t.shape) for t in given]


def _save(ctx, inputs, output):  # type: ignore[no-untyped-def]
    out, noise, stats = output
    ctx.options = inputs[_TENSORS:-1]
    ctx.mark_non_differentiable(noise, stats)
    ctx.save_for_backward(*inputs[:_TENSORS], out, noise, stats)


def _differentiate(ctx, dout, *_):  # type: ignore[no-untyped-def]
    *tensors, out, noise, stats = ctx.saved_tensors
    if not stats.numel() and out.numel():
        raise RuntimeError("triton_attention: gradients need save=True in the forward call")
    given = tensors[:_DIFFERENTIABLE]
    without_gradient = (None,) * (_TENSORS - _DIFFERENTIABLE + len(ctx.options) + 1)
    if torch._C._functorch.is_legacy_batchedtensor(dout):
        args = _arguments(*tensors, *ctx.options)
        found = _gradients_of(sdpa.forward, tuple(tensors), args, dout)
    else:
        found = _backward(dout, out, noise, stats, *tensors, *ctx.options)
    grads = iter(found)
    return *(None if t is None else next(grads) for t in given), *without_gradient


def _no_second_derivative(ctx, *_):  # type: ignore[no-untyped-def]
    raise RuntimeError(
        "antiphase's triton backend has no second derivatives; "
        "use backend='reference', which is plain autograd"
    )


_forward.register_autograd(_differentiate, setup_context=_save)
_backward.register_autograd(_no_second_derivative)


@register_flop_formula(torch.ops.antiphase.triton_attention)
def _(q1, k1, q2, k2, v, *args, **kwargs):  # type: ignore[no-untyped-def]
    return attention_flops(q1, q2, v, (1, 1 if q2 is None else 2))  # each map is applied to V


@register_flop_formula(torch.ops.antiphase.triton_attention_backward)
def _(dout, out, noise, stats, q1, k1, q2, k2, v, *args, **kwargs):  # type: ignore[no-untyped-def]
    # In one pass, as PyTorch counts its own; the two kernels compute scores and dP twice.
    return attention_flops(q1, q2, v, (3, 2))
