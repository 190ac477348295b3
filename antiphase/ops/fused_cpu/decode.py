"""Decoding with little overhead: few query rows, no gradients.

One query and a short cache take a few microseconds, less than the checks of the general path. What
stays the same from token to token is checked once and kept by its signature; the rest (addresses,
strides, the number of keys) is read in every call.
"""

import struct
from types import NoneType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from antiphase.ops.arguments import validate
from antiphase.ops.fused_cpu import abi, native
from antiphase.ops.fused_cpu.eager import is_eager
from antiphase.ops.fused_cpu.level import requested_python, why_python

_KEPT = 256  # signatures
_LAYOUT = struct.Struct(f"={len(abi.INTEGERS.split())}q3d{4 * len(abi.VIEWS.split())}q")
_BEFORE_KEYS = abi.INTEGERS.split().index("Tk")
_NO_VIEW = (0, 0, 0, 0)
_BEHIND_STATISTICS = _NO_VIEW * (len(abi.VIEWS.split()) - abi.VIEWS.split().index("dout"))


class _Plan(NamedTuple):
    """What calls of one signature have in common."""

    function: Any
    integers: tuple[int, ...]  # of the interface; Tk is replaced in each call
    scales: tuple[float, float, float]
    lam: Tensor | None  # a number as a tensor; None where the caller gives one
    lam_dims: tuple[int | None, ...]  # its dimensions for batch, head and row; None: broadcast
    maps: int


_plans: dict[tuple[object, ...], _Plan | None] = {}


def decode(
    q1: Tensor,
    k1: Tensor,
    q2: Tensor | None,
    k2: Tensor | None,
    v: Tensor,
    lam: Tensor | float | None,
    mask: Tensor | None,
    causal: bool,
    scale: float | None,
    scale2: float | None,
    window: int | None,
    keep_first: int,
) -> Tensor | None:
    """Return the output [B, H, Tq, dv], or None if the general path must run the call.

    Args:
        q1: Signal queries [B, H, Tq, d].
        k1: Signal keys [B, Hkv, Tk, d].
        q2: Noise queries, or None with one map.
        k2: Noise keys, or None with one map; `k1` itself where the maps share their keys.
        v: Values [B, Hkv, Tk, dv].
        lam: A number or a tensor, or None with one map.
        mask: As in `diff_attention`, like all that follows.
        causal: Mask the future.
        scale: Factor of the signal scores.
        scale2: Factor of the noise scores.
        window: Keys that a row attends to.
        keep_first: First keys that stay visible beside the window.
    """
    inputs = (q1, k1, v) if q2 is None or k2 is None else (q1, k1, v, q2, k2)
    tensors = (*inputs, lam) if isinstance(lam, Tensor) else inputs
    if mask is not None:
        tensors = (*tensors, mask)
    lam_key = (lam.shape, lam.dtype, lam.is_cpu) if isinstance(lam, Tensor) else lam
    if not is_eager(*tensors) or q1.dim() != 4 or q1.shape[2] > abi.MAX_DECODE_ROWS:
        return None
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return None
    if requested_python() or not isinstance(lam, (Tensor, float, int, NoneType)):
        return None
    if mask is not None and (mask.dim() != 4 or mask.stride(3) != 1):
        return None
    mask_key = None if mask is None else (mask.shape[:3], mask.dtype, mask.is_cpu)
    shapes = [(t.dtype, t.is_cpu, t.dim(), *t.shape[:2], t.shape[-1]) for t in inputs[1:]]
    key = (q1.shape, q1.dtype, q1.is_cpu, *shapes, k2 is k1, lam_key, causal, scale, scale2, window)
    key = (*key, keep_first, mask_key)
    if key not in _plans:
        if len(_plans) >= _KEPT:
            _plans.clear()
        options = (causal, scale, scale2, window, keep_first)
        _plans[key] = _plan(q1, k1, q2, k2, v, lam, mask, *options)
    plan = _plans[key]
    if plan is None or not _varying_sizes_agree(*inputs):
        return None
    if mask is not None and mask.shape[3] != k1.shape[2]:
        return None
    return _call(plan, q1, k1, q2, None if k2 is k1 else k2, v, lam, mask)


def _varying_sizes_agree(
    q1: Tensor, k1: Tensor, v: Tensor, q2: Tensor | None = None, k2: Tensor | None = None
) -> bool:
    """Tell whether what the signature leaves out fits: third sizes and strides of channels."""
    Tk = k1.shape[2]
    if not Tk or v.shape[2] != Tk or any(t.stride(3) != 1 for t in (q1, k1, v)):
        return False
    if q2 is None or k2 is None:
        return True
    return (
        (q2.shape[2], k2.shape[2]) == (q1.shape[2], Tk) and q2.stride(3) == 1 and k2.stride(3) == 1
    )


def _plan(
    q1: Tensor,
    k1: Tensor,
    q2: Tensor | None,
    k2: Tensor | None,
    v: Tensor,
    lam: Tensor | float | None,
    mask: Tensor | None,
    causal: bool,
    scale: float | None,
    scale2: float | None,
    window: int | None,
    keep_first: int,
) -> _Plan | None:
    """Validate the first call of a signature; return None if the general path must run them all."""
    args = validate(
        *(q1, k1, q2, k2, v, lam, None, mask, causal, scale, scale2),
        window=window,
        keep_first=keep_first,
    )
    general = not q1.is_cpu or not q1.shape[0] or why_python(args) is not None
    if general or abi.repeats_keys(args):
        return None
    if mask is not None and (args.mask is None or args.mask.dtype != mask.dtype):
        return None  # it was converted
    lam_dims: tuple[int | None, ...] = (None, None, None)
    if isinstance(lam, Tensor):
        if lam.dtype != torch.float32 or not lam.is_cpu:
            return None
        dims = [i - 4 + lam.dim() for i in range(3)]
        lam_dims = tuple(i if i >= 0 and lam.shape[i] > 1 else None for i in dims)
    library = native.library()
    call = abi.kernel_arguments(library, args, backward=False)
    number = args.lam is not None and not isinstance(lam, Tensor)
    return _Plan(
        function=library.handle.antiphase_forward,
        integers=tuple(getattr(call, name) for name in abi.INTEGERS.split()),
        scales=(call.scale1, call.scale2, 0.0),
        lam=args.lam[:1, :1, :1].contiguous() if number and args.lam is not None else None,
        lam_dims=lam_dims,
        maps=len(args.pairs),
    )


def _call(
    plan: _Plan,
    q1: Tensor,
    k1: Tensor,
    q2: Tensor | None,
    k2: Tensor | None,
    v: Tensor,
    lam: Tensor | float | None,
    mask: Tensor | None,
) -> Tensor:
    B, H, Tq, _ = q1.shape
    out = q1.new_empty((B, H, Tq, v.shape[3]))
    stats = torch.empty(2 * plan.maps * B * H * Tq)
    lam = plan.lam if plan.lam is not None else lam
    lam_view: tuple[int, ...] = _NO_VIEW
    mask_view: tuple[int, ...] = _NO_VIEW
    if mask is not None:
        strides = zip(mask.shape[:3], mask.stride(), strict=False)
        mask_view = (mask.data_ptr(), *(0 if size == 1 else stride for size, stride in strides))
    if isinstance(lam, Tensor):
        steps = lam.stride()
        lam_view = (lam.data_ptr(), *(0 if i is None else steps[i] for i in plan.lam_dims))
    n, address = B * H * Tq, stats.data_ptr()
    statistics = [(address + 4 * n * i, H * Tq, Tq, 1) for i in range(2 * plan.maps)]
    if plan.maps == 1:
        statistics += [_NO_VIEW, _NO_VIEW]
    max1, inverse1, max2, inverse2 = statistics
    arguments = _LAYOUT.pack(
        *plan.integers[:_BEFORE_KEYS],
        k1.shape[2],
        *plan.integers[_BEFORE_KEYS + 1 :],
        *plan.scales,
        *_view(q1),
        *_view(k1),
        *(_NO_VIEW if q2 is None else _view(q2)),
        *(_NO_VIEW if k2 is None else _view(k2)),
        *_view(v),
        *lam_view,
        *_NO_VIEW,  # sink
        *mask_view,
        *_NO_VIEW,  # documents
        *(out.data_ptr(), *out.stride()[:3]),
        *(*max1, *max2, *inverse1, *inverse2),
        *_BEHIND_STATISTICS,
    )
    abi.run(plan.function, arguments, 1)
    return out


def _view(t: Tensor) -> tuple[int, int, int, int]:
    batch, head, row, _ = t.stride()
    return t.data_ptr(), batch, head, row
