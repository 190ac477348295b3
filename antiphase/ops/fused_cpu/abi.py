"""The call into the C++ kernels through ctypes; mirrors `csrc/abi.h` field by field."""

import ctypes
import dataclasses
import math
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from antiphase.cpu import l2_cache_bytes
from antiphase.ops.arguments import Arguments, repeat_heads
from antiphase.ops.dropout import STEPS

KERNELS = ("brgemm fp32", "brgemm bf16", "blas bf16")  # micro-kernels, in the order of abi.h
DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # in the order of abi.h
_MASK_DTYPES = (*DTYPES, torch.bool)  # in the order of abi.h
MAX_DECODE_ROWS = 8


class TensorView(ctypes.Structure):
    """A tensor [B, H, T, channels] with contiguous channels: its address and strides."""

    _fields_ = [("data", ctypes.c_void_p)] + [
        (name, ctypes.c_int64) for name in ("batch", "head", "row")
    ]


INTEGERS = """dtype kernel B H Hkv Tq Tk d1 d2 dv q2_group k2_group shared_keys causal window
keep_first mask_dtype seed dropout block_rows pack_bytes"""
VIEWS = """q1 k1 q2 k2 v lam sink mask documents out max1 max2 inverse1 inverse2
dout dq1 dk1 dq2 dk2 dv_ dlam dsink"""


class KernelArguments(ctypes.Structure):
    """The arguments of one kernel call."""

    _fields_ = (
        [(name, ctypes.c_int64) for name in INTEGERS.split()]
        + [(name, ctypes.c_double) for name in ("scale1", "scale2", "softcap")]
        + [(name, TensorView) for name in VIEWS.split()]
    )


@dataclasses.dataclass(frozen=True)
class Library:
    """The loaded kernels and the speed of their micro-kernels on this processor."""

    path: Path
    handle: ctypes.CDLL
    rates: dict[str, float]  # GFLOP/s of a tile on one thread, by micro-kernel; 0: unusable
    bf16_kernel: int = 0  # index of the micro-kernel for bf16 operands
    origin: str = ""  # to print: prebuilt, or built from source and why


def forward(library: Library, args: Arguments) -> tuple[Tensor, Tensor]:
    """Return the output and the row statistics [2 * maps, B, H, Tq] that the backward pass needs.

    Statistics are, of the signal map and then the noise map: the maximum of the scores that was
    subtracted, and 1 / the sum of the exponentials.
    """
    decode, width = args.q1.shape[2] <= MAX_DECODE_ROWS, args.v.shape[-1]
    args = _for_kernel(args, any_width=decode)
    call = kernel_arguments(library, args, backward=False)
    rows = args.q1.shape[:3]
    out = args.q1.new_empty(*rows, args.v.shape[-1])
    stats = args.q1.new_empty(2 if args.q2 is None else 4, *rows, dtype=torch.float32)
    call.out = _view(out)
    _set_statistics(call, stats)
    run(library.handle.antiphase_forward, ctypes.byref(call), int(decode))
    return out[..., :width].contiguous(), stats


def backward(
    library: Library, args: Arguments, dout: Tensor, stats: Tensor
) -> tuple[Tensor | None, ...]:
    """Return dq1, dk1, dq2, dk2, dv and, per row, dlam and dsink [B, H, Tq, 1].

    With shared keys, dk1 is the gradient from both maps and dk2 is None.
    """
    given = args
    args = _for_kernel(args)
    dout = _contiguous_channels(_pad_channels(dout))
    call = kernel_arguments(library, args, backward=True)
    if args.q1.shape[2] <= MAX_DECODE_ROWS:
        # Decoding adds in another order than the products of this pass, which need the maxima of
        # their own scores.
        stats, unused = torch.empty_like(stats), torch.empty_like(dout)
        call.out = _view(unused)
        _set_statistics(call, stats)
        run(library.handle.antiphase_forward, ctypes.byref(call), 0)
    _set_statistics(call, stats)
    call.dout = _view(dout)
    H, Hkv = args.q1.shape[1], args.k1.shape[1]
    inputs = (args.q1, args.k1, args.q2, args.k2, args.v)
    heads = (H, Hkv, H, Hkv, Hkv)
    grads = [
        None if t is None else t.new_empty(t.shape[0], h, *t.shape[2:])
        for t, h in zip(inputs, heads, strict=True)
    ]
    call.dq1, call.dk1, call.dq2, call.dk2, call.dv_ = (_view(t) for t in grads)
    per_row = (*args.q1.shape[:3], 1)
    dlam, dsink = (None if t is None else stats.new_empty(per_row) for t in (args.lam, args.sink))
    call.dlam, call.dsink = _view(dlam), _view(dsink)
    run(library.handle.antiphase_backward, ctypes.byref(call))
    originals = (given.q1, given.k1, given.q2, given.k2, given.v)
    grads = [
        None if t is None or grad is None else _reduce(grad, t)
        for t, grad in zip(originals, grads, strict=True)
    ]
    return (*grads, dlam, dsink)


def linear(library: Library, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x W^T + bias for few rows x [..., K]; W [M, K] is contiguous, all have one dtype."""
    M, K = weight.shape
    y = x.new_empty((*x.shape[:-1], M))
    x, bias = x.contiguous(), None if bias is None else bias.contiguous()
    tensors = (x.data_ptr(), weight.data_ptr(), 0 if bias is None else bias.data_ptr())
    sizes = (DTYPES.index(x.dtype), x.numel() // K, M, K)
    run(library.handle.antiphase_linear, *tensors, y.data_ptr(), *sizes)
    return y


def _reduce(grad: Tensor, to: Tensor) -> Tensor:
    """Return a gradient in the shape of its input: without padded channels, shared heads summed."""
    grad = grad[..., : to.shape[-1]]
    if grad.shape[1] == to.shape[1]:
        return grad
    grad = grad.unflatten(1, (to.shape[1], -1))  # [B, heads, repeats, T, d]
    return grad.sum(2, dtype=torch.float32).to(to.dtype)


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
    if t is None:
        return _NULL
    batch, head, row, _ = t.stride()
    return TensorView(t.data_ptr(), batch, head, row if t.shape[2] > 1 else t.shape[3])


def _set_statistics(call: KernelArguments, stats: Tensor) -> None:
    names = ("max1", "inverse1", "max2", "inverse2")
    for name, t in zip(names, stats.unbind(0), strict=False):
        setattr(call, name, TensorView(t.data_ptr(), *t.stride()))


def _contiguous_channels(t: Tensor) -> Tensor:
    """Return `t` with contiguous channels and rows that do not overlap, as the kernels need."""
    separate = t.stride(2) >= t.shape[3] or t.shape[2] == 1
    return t if (t.stride(3) == 1 or t.shape[3] == 1) and separate else t.contiguous()


def _pad_channels(t: Tensor) -> Tensor:
    """Pad the channels with zeros to a multiple of 8, which the products need."""
    rest = -t.shape[-1] % 8
    return F.pad(t, (0, rest)) if rest else t


def repeats_keys(args: Arguments) -> bool:
    """Tell whether a noise head belongs to a part of a key head: then key heads are repeated."""
    return args.k2 is not None and args.k1.shape[1] % args.k2.shape[1] != 0


def _for_kernel(args: Arguments, any_width: bool = False) -> Arguments:
    """Bring the arguments into the form that the kernels take.

    Channels become contiguous and, unless `any_width`, multiples of 8. Key and value heads are
    repeated where a noise head belongs to a part of one. The mask gets contiguous keys, documents
    contiguous pairs.
    """
    k1, v = args.k1, args.v
    if args.k2 is not None and repeats_keys(args):
        heads = math.lcm(k1.shape[1], args.k2.shape[1])
        k1, v = repeat_heads(k1, heads), repeat_heads(v, heads)

    def ready(t: Tensor) -> Tensor:
        return _contiguous_channels(t if any_width else _pad_channels(t))

    q2, k2 = (None if t is None else ready(t) for t in (args.q2, args.k2))
    q1, k1, v = ready(args.q1), ready(k1), ready(v)
    documents = args.documents
    if documents is not None and documents.stride(-1) != 1:
        documents = documents.contiguous()
    mask = _kernel_mask(args)
    return dataclasses.replace(
        args, q1=q1, k1=k1, q2=q2, k2=k2, v=v, mask=mask, documents=documents
    )


def _kernel_mask(args: Arguments) -> Tensor | None:
    """Return the mask as [B, H, Tq, Tk] with contiguous keys; repeated dimensions have stride 0."""
    mask = args.mask
    if mask is None:
        return None
    (B, H, Tq, _), Tk = args.q1.shape, args.k1.shape[2]
    if mask.shape[-1] != Tk or mask.stride(-1) != 1:
        mask = mask.expand(*mask.shape[:-1], Tk).contiguous()
    return mask.expand(B, H, Tq, Tk)


def _block_rows(kernel: str, args: Arguments, backward: bool) -> int:
    """Return the number of query rows in a block.

    Few rows keep their scores of two maps in the L2 cache; where even 64 rows do not fit, more rows
    read keys and values less often. A BLAS packs its operands in every call and needs still more.
    The scores of all threads together stay small beside the output. Measured in docs/log.md.
    """
    B, H, Tq, _ = args.q1.shape
    Tk, dv = args.v.shape[2:]
    if args.documents is not None and args.documents.numel():
        Tk = int(args.documents.diff(dim=-1).max())  # keys that a block attends to
    if args.window:
        Tk = min(Tk, args.window + args.keep_first + 512)
    row_bytes = 2 * Tk * (4 if kernel == "brgemm fp32" else 2)
    if kernel == "blas bf16":
        rows = 256 if Tk >= 1024 else 128
    else:
        rows = 64 if 64 * row_bytes <= l2_cache_bytes() // 2 else 128
    if backward:
        return rows
    budget = max(3 << 20, B * H * Tq * dv * args.v.element_size() // 10)
    affordable = budget // (row_bytes * torch.get_num_threads()) // 16 * 16
    return max(32, min(rows, affordable))


def kernel_arguments(library: Library, args: Arguments, *, backward: bool) -> KernelArguments:
    """Return the kernel's arguments with its inputs filled in, after `_for_kernel`."""
    B, H, Tq, d1 = args.q1.shape
    _, Hkv, Tk, dv = args.v.shape
    kernel = library.bf16_kernel if args.q1.dtype == torch.bfloat16 else 0
    names = ("q1", "k1", "q2", "k2", "v", "lam", "mask")
    call = KernelArguments(
        dtype=DTYPES.index(args.q1.dtype),
        kernel=kernel,
        B=B,
        H=H,
        Hkv=Hkv,
        Tq=Tq,
        Tk=Tk,
        d1=d1,
        dv=dv,
        causal=args.causal,
        window=args.window,
        keep_first=args.keep_first,
        block_rows=_block_rows(KERNELS[kernel], args, backward),
        pack_bytes=l2_cache_bytes() // 2,
        scale1=args.scale1,
        scale2=args.scale2,
        softcap=args.softcap,
        **{name: _view(getattr(args, name)) for name in names},
    )
    if args.q2 is not None:
        call.d2, call.q2_group = args.q2.shape[-1], H // args.q2.shape[1]
        call.shared_keys = args.k2 is None
        call.k2_group = 1 if args.k2 is None else Hkv // args.k2.shape[1]
    if args.sink is not None:
        call.sink = TensorView(args.sink.data_ptr(), 0, args.sink.stride(0), 0)
    if args.mask is not None:
        call.mask_dtype = _MASK_DTYPES.index(args.mask.dtype)
    if args.documents is not None:
        batch, row, _ = args.documents.stride()
        call.documents = TensorView(args.documents.data_ptr(), batch, 0, row)
    if args.seed is not None:
        call.seed, call.dropout = int(args.seed), round(args.dropout * STEPS)
    return call


def run(function: Any, *arguments: object) -> None:
    """Call a kernel; raise what it reports."""
    message = ctypes.create_string_buffer(512)
    if function(*arguments, message, len(message)):
        raise RuntimeError(f"antiphase CPU kernel: {message.value.decode(errors='replace')}")
