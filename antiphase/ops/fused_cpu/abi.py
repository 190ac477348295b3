"""The call into the C++ kernels through ctypes; mirrors `csrc/abi.h` field by field."""

import ctypes
import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from antiphase.cpu import l2_cache_bytes
from antiphase.ops.arguments import Arguments

KERNELS = ("brgemm fp32", "brgemm bf16", "blas bf16")  # micro-kernels, in the order of abi.h
DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # in the order of abi.h
MAX_DECODE_ROWS = 8


class TensorView(ctypes.Structure):
    """A tensor [B, H, T, channels] with contiguous channels: its address and strides."""

    _fields_ = [("data", ctypes.c_void_p)] + [
        (name, ctypes.c_int64) for name in ("batch", "head", "row")
    ]


_INTEGERS = "dtype kernel B H Hkv Tq Tk d1 d2 dv causal block_rows pack_bytes"
_VIEWS = "q1 k1 q2 k2 v lam sink out lse1 lse2 dout dq1 dk1 dq2 dk2 dv_ dlam dsink"


class KernelArguments(ctypes.Structure):
    """The arguments of one kernel call."""

    _fields_ = (
        [(name, ctypes.c_int64) for name in _INTEGERS.split()]
        + [(name, ctypes.c_double) for name in ("scale1", "scale2")]
        + [(name, TensorView) for name in _VIEWS.split()]
    )


@dataclasses.dataclass(frozen=True)
class Library:
    """The loaded kernels and the speed of their micro-kernels on this processor."""

    path: Path
    handle: ctypes.CDLL
    rates: dict[str, float]  # GFLOP/s of a tile on one thread, by micro-kernel; 0: unusable
    bf16_kernel: int = 0  # index of the micro-kernel for bf16 operands


def forward(library: Library, args: Arguments) -> tuple[Tensor, Tensor, Tensor]:
    """Return the output and the base-2 log-sum-exp [B, H, Tq] of both maps."""
    args = _contiguous_rows(args)
    call = _kernel_arguments(library, args, backward=False)
    rows = args.q1.shape[:3]
    out = args.q1.new_empty(*rows, args.v.shape[-1])
    lse1 = args.q1.new_empty(rows, dtype=torch.float32)
    lse2 = lse1.new_empty(0 if args.q2 is None else rows)
    call.out, call.lse1, call.lse2 = _view(out), _row_view(lse1), _row_view(lse2)
    decode = int(rows[2] <= MAX_DECODE_ROWS)
    _run(library.handle.antiphase_forward, ctypes.byref(call), decode)
    return out, lse1, lse2


def backward(
    library: Library, args: Arguments, dout: Tensor, lse1: Tensor, lse2: Tensor
) -> tuple[Tensor | None, ...]:
    """Return dq1, dk1, dq2, dk2, dv and, per row, dlam and dsink [B, H, Tq, 1]."""
    args, dout = _contiguous_rows(args), _contiguous_channels(dout)
    call = _kernel_arguments(library, args, backward=True)
    call.dout, call.lse1, call.lse2 = _view(dout), _row_view(lse1), _row_view(lse2)
    inputs = (args.q1, args.k1, args.q2, args.k2, args.v)
    grads = [None if t is None else t.new_empty(t.shape) for t in inputs]
    call.dq1, call.dk1, call.dq2, call.dk2, call.dv_ = (_view(t) for t in grads)
    per_row = (*args.q1.shape[:3], 1)
    dlam, dsink = (None if t is None else lse1.new_empty(per_row) for t in (args.lam, args.sink))
    call.dlam, call.dsink = _view(dlam), _view(dsink)
    _run(library.handle.antiphase_backward, ctypes.byref(call))
    return (*grads, dlam, dsink)


def tile_rate(handle: ctypes.CDLL, kernel: int) -> float:
    """Return the GFLOP/s of a micro-kernel's tiles on one thread; 0 where it is not available."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a BLAS would use all of them
    try:
        return float(handle.antiphase_rate(kernel))
    finally:
        torch.set_num_threads(threads)


_NULL = TensorView(None, 0, 0, 0)


def _view(t: Tensor | None) -> TensorView:
    return _NULL if t is None else TensorView(t.data_ptr(), *t.stride()[:3])


def _row_view(t: Tensor) -> TensorView:
    """Return the view of a contiguous [B, H, Tq] tensor of row statistics."""
    return _NULL if t.dim() != 3 else TensorView(t.data_ptr(), *t.stride())


def _contiguous_channels(t: Tensor) -> Tensor:
    """Return `t` with contiguous channels and rows that do not overlap, as the kernels need."""
    separate = t.stride(2) >= t.shape[3] or t.shape[2] == 1
    return t if t.stride(3) == 1 and separate else t.contiguous()


def _contiguous_rows(args: Arguments) -> Arguments:
    """Apply `_contiguous_channels` to queries, keys and values."""
    q2, k2 = (None if t is None else _contiguous_channels(t) for t in (args.q2, args.k2))
    q1, k1, v = (_contiguous_channels(t) for t in (args.q1, args.k1, args.v))
    return dataclasses.replace(args, q1=q1, k1=k1, q2=q2, k2=k2, v=v)


def _block_rows(kernel: str, q1: Tensor, v: Tensor, backward: bool) -> int:
    """Return the number of query rows in a block.

    Few rows keep their scores of two maps in the L2 cache; where even 64 rows do not fit, more rows
    read keys and values less often. A BLAS packs its operands in every call and needs still more.
    The scores of all threads together stay small beside the output. Measured in docs/log.md.
    """
    B, H, Tq, _ = q1.shape
    Tk, dv = v.shape[2:]
    row_bytes = 2 * Tk * (4 if kernel == "brgemm fp32" else 2)
    if kernel == "blas bf16":
        rows = 256 if Tk >= 1024 else 128
    else:
        rows = 64 if 64 * row_bytes <= l2_cache_bytes() // 2 else 128
    if backward:
        return rows
    budget = max(6 << 20, B * H * Tq * dv * v.element_size() // 4)
    affordable = budget // (row_bytes * torch.get_num_threads()) // 16 * 16
    return max(32, min(rows, affordable))


def _kernel_arguments(library: Library, args: Arguments, *, backward: bool) -> KernelArguments:
    """Return the kernel's arguments with its inputs filled in, after `_contiguous_rows`."""
    B, H, Tq, d1 = args.q1.shape
    _, Hkv, Tk, dv = args.v.shape
    kernel = library.bf16_kernel if args.q1.dtype == torch.bfloat16 else 0
    inputs = {name: _view(getattr(args, name)) for name in ("q1", "k1", "q2", "k2", "v", "lam")}
    sink = args.sink
    return KernelArguments(
        dtype=DTYPES.index(args.q1.dtype),
        kernel=kernel,
        B=B,
        H=H,
        Hkv=Hkv,
        Tq=Tq,
        Tk=Tk,
        d1=d1,
        d2=0 if args.q2 is None else args.q2.shape[-1],
        dv=dv,
        causal=args.causal,
        block_rows=_block_rows(KERNELS[kernel], args.q1, args.v, backward),
        pack_bytes=l2_cache_bytes() // 2,
        scale1=args.scale1,
        scale2=args.scale2,
        **inputs,
        sink=_NULL if sink is None else TensorView(sink.data_ptr(), 0, sink.stride(0), 0),
    )


def _run(function: Any, *arguments: object) -> None:
    message = ctypes.create_string_buffer(512)
    if function(*arguments, message, len(message)):
        raise RuntimeError(f"antiphase CPU kernel: {message.value.decode(errors='replace')}")
