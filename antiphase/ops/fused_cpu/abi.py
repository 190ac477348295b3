"""Call the kernels of a loaded library; the mirror of `csrc/abi.h` for ctypes."""

import ctypes
import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from antiphase.cpu import near_cache_bytes
from antiphase.ops.arguments import Arguments

KERNELS = ("brgemm fp32", "brgemm bf16", "blas bf16")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MAX_DECODE_ROWS = 8


class View(ctypes.Structure):
    """A [B, H, T, channels] tensor with adjacent channels (see csrc/abi.h)."""

    _fields_ = [("data", ctypes.c_void_p)] + [
        (name, ctypes.c_int64) for name in ("batch", "head", "row")
    ]


_INTEGERS = "dtype kernel B H Hkv Tq Tk d1 d2 dv causal block_rows pack_bytes"
_VIEWS = "q1 k1 q2 k2 v lam sink out lse1 lse2 dout dq1 dk1 dq2 dk2 dv_ dlam dsink"


class Call(ctypes.Structure):
    """The arguments of one call (see csrc/abi.h)."""

    _fields_ = (
        [(name, ctypes.c_int64) for name in _INTEGERS.split()]
        + [(name, ctypes.c_double) for name in ("scale1", "scale2")]
        + [(name, View) for name in _VIEWS.split()]
    )


@dataclasses.dataclass(frozen=True)
class Library:
    """The loaded kernels and what was measured of them on this processor."""

    path: Path
    handle: ctypes.CDLL
    rates: dict[str, float]  # GFLOP/s of a tile, one thread, by micro-kernel

    @property
    def bf16_kernel(self) -> int:
        """Return the index of the fastest micro-kernel for bf16 operands."""
        return max(range(len(KERNELS)), key=lambda i: self.rates[KERNELS[i]])


def tile_rate(handle: ctypes.CDLL, kernel: int) -> float:
    """Return the GFLOP/s of a micro-kernel's tiles on one thread; 0 where it is not available."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a BLAS would use them all
    try:
        return float(handle.antiphase_rate(kernel))
    finally:
        torch.set_num_threads(threads)


_NOTHING = View(None, 0, 0, 0)


def _view(t: Tensor | None) -> View:
    return _NOTHING if t is None else View(t.data_ptr(), *t.stride()[:3])


def _row_view(t: Tensor) -> View:
    """Return the view of a contiguous [B, H, Tq] tensor of row statistics."""
    return _NOTHING if t.dim() != 3 else View(t.data_ptr(), *t.stride())


def _adjacent(t: Tensor) -> Tensor:
    """Return `t` with adjacent channels and rows that do not overlap, which the kernels need."""
    apart = t.stride(2) >= t.shape[3] or t.shape[2] == 1
    return t if t.stride(3) == 1 and apart else t.contiguous()


def _adjacent_all(a: Arguments) -> Arguments:
    q2, k2 = (None if t is None else _adjacent(t) for t in (a.q2, a.k2))
    return dataclasses.replace(
        a, q1=_adjacent(a.q1), k1=_adjacent(a.k1), q2=q2, k2=k2, v=_adjacent(a.v)
    )


def _block_rows(kernel: str, q1: Tensor, v: Tensor, backward: bool) -> int:
    """Return how many query rows go together.

    Few rows keep their scores of two maps in the near cache; where even 64 do not fit it, more rows
    read keys and values less often. A BLAS packs its operands in every call and wants more still.
    All threads' scores together stay small beside the output. Measured in docs/log.md.
    """
    B, H, Tq, _ = q1.shape
    Tk, dv = v.shape[2:]
    blas = kernel == "blas bf16"
    row_bytes = 2 * Tk * (4 if kernel == "brgemm fp32" else 2)
    if blas:
        rows = 256 if Tk >= 1024 else 128
    else:
        rows = 64 if 64 * row_bytes <= near_cache_bytes() // 2 else 128
    if backward:
        return rows
    budget = max(6 << 20, B * H * Tq * dv * v.element_size() // 4)
    affordable = budget // (row_bytes * torch.get_num_threads()) // 16 * 16
    return max(32, min(rows, affordable))


def _call(library: Library, a: Arguments, *, backward: bool) -> Call:
    """Return the call with its inputs filled in; tensors must have been through `_adjacent`."""
    B, H, Tq, d1 = a.q1.shape
    _, Hkv, Tk, dv = a.v.shape
    kernel = library.bf16_kernel if a.q1.dtype == torch.bfloat16 else 0
    return Call(
        dtype=DTYPES.index(a.q1.dtype),
        kernel=kernel,
        B=B,
        H=H,
        Hkv=Hkv,
        Tq=Tq,
        Tk=Tk,
        d1=d1,
        dv=dv,
        d2=0 if a.q2 is None else a.q2.shape[-1],
        causal=a.causal,
        block_rows=_block_rows(KERNELS[kernel], a.q1, a.v, backward),
        pack_bytes=near_cache_bytes() // 2,
        scale1=a.scale1,
        scale2=a.scale2,
        **{name: _view(getattr(a, name)) for name in ("q1", "k1", "q2", "k2", "v", "lam")},
        sink=_NOTHING if a.sink is None else View(a.sink.data_ptr(), 0, a.sink.stride(0), 0),
    )


def _run(function: Any, *arguments: object) -> None:
    message = ctypes.create_string_buffer(512)
    if function(*arguments, message, len(message)):
        raise RuntimeError(f"antiphase CPU kernel: {message.value.decode(errors='replace')}")


def forward(library: Library, a: Arguments) -> tuple[Tensor, Tensor, Tensor]:
    """Return the output and the base-2 row normalisers [B, H, Tq] of both maps."""
    a = _adjacent_all(a)
    call = _call(library, a, backward=False)
    rows = a.q1.shape[:3]
    out = a.q1.new_empty(*rows, a.v.shape[-1])
    lse1 = a.q1.new_empty(rows, dtype=torch.float32)
    lse2 = lse1.new_empty(0 if a.q2 is None else rows)
    call.out, call.lse1, call.lse2 = _view(out), _row_view(lse1), _row_view(lse2)
    decode = int(rows[2] <= MAX_DECODE_ROWS)
    _run(library.handle.antiphase_forward, ctypes.byref(call), decode)
    return out, lse1, lse2


def backward(
    library: Library, a: Arguments, dout: Tensor, lse1: Tensor, lse2: Tensor
) -> tuple[Tensor | None, ...]:
    """Return dq1, dk1, dq2, dk2, dv and, a row, dlam and dsink [B, H, Tq, 1]."""
    a, dout = _adjacent_all(a), _adjacent(dout)
    call = _call(library, a, backward=True)
    call.dout, call.lse1, call.lse2 = _view(dout), _row_view(lse1), _row_view(lse2)
    grads = [None if t is None else t.new_empty(t.shape) for t in (a.q1, a.k1, a.q2, a.k2, a.v)]
    call.dq1, call.dk1, call.dq2, call.dk2, call.dv_ = (_view(t) for t in grads)
    per_row = (*a.q1.shape[:3], 1)
    dlam, dsink = (None if t is None else lse1.new_empty(per_row) for t in (a.lam, a.sink))
    call.dlam, call.dsink = _view(dlam), _view(dsink)
    _run(library.handle.antiphase_backward, ctypes.byref(call))
    return (*grads, dlam, dsink)
