"""Launch the kernels for one call: output, statistics and gradients."""

import functools
import math
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from .backward import dkv_kernel, dq_kernel, row_products_kernel
from .blocks import ROWS
from .decode import decode_kernel, merge_kernel
from .forward import forward_kernel
from .tiles import Shape, Tile, padded_width
from .tuning import run_fastest
from .visibility import Visibility, row_ranges

LOG2_E = math.log2(math.e)
DECODED_ROWS = 16  # calls without gradients and with at most this many rows split the keys
DECODED_BLOCK = 32  # most rows of heads that share their keys in one program; BM of the tiles


@dataclass(frozen=True)
class Call:
    """The tensors of one call; the channels of a head lie next to each other in memory."""

    q1: Tensor  # [B, H, Tq, d]
    k1: Tensor  # [B, Hkv, Tk, d]
    q2: Tensor | None  # [B, Hn, Tq, d2]; None: one map
    k2: Tensor | None  # [B, Hkv_n, Tk, d2]; None: k1 serves both maps
    v: Tensor  # [B, Hkv, Tk, dv]
    lam: Tensor | None  # [B, H, Tq, 1], fp32
    sink: Tensor | None  # [H], fp32; with one map only
    seen: Visibility
    scale1: float
    scale2: float

    @property
    def noise(self) -> tuple[Tensor, Tensor]:
        """Return queries and keys of the noise map; the signal's where there is none."""
        if self.q2 is None:
            return self.q1, self.k1
        return self.q2, self.k1 if self.k2 is None else self.k2

    @property
    def shape(self) -> Shape:
        """Return what the choice of tiles depends on."""
        d, d2, dv = (padded_width(t.shape[-1]) for t in (self.q1, self.noise[0], self.v))
        two = self.q2 is not None
        return Shape(d, d2, dv, self.q1.dtype, 1 + two, two and self.k2 is None)


def forward(call: Call, save: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return the output, A2 V, and the log-sum-exps [maps, B, H, Tq] in base 2.

    Args:
        call: What to compute.
        save: Gradients will be needed. Otherwise the last two are empty.
    """
    out, noise, stats = empty_results(call.q1, call.v, call.shape.maps, save)
    if not save and out.shape[2] <= DECODED_ROWS:
        _decode(call, out)
    elif call.shape.maps == 1 or call.shape.fused:
        _attend(call, out, noise, stats)
    else:
        saved = noise if save else torch.empty_like(out)
        _attend(_noise_alone(call), saved, out, stats[1:])
        _attend(call, out, saved, stats, subtract=True)
    return out, noise, stats


def _attend(call: Call, out: Tensor, noise: Tensor, stats: Tensor, subtract: bool = False) -> None:
    B, H, Tq, _ = out.shape
    flags = {**_flags(call), "SAVE": stats.numel() > 0, "SUBTRACT": subtract}
    if subtract:
        flags |= {"TWO": False, "SHARED": False}
    groups = (H // call.q1.shape[1], H // call.v.shape[1])

    def launch(tile: Tile) -> None:
        forward_kernel[(triton.cdiv(Tq, tile.BM), B * H)](
            *_inputs(call), out, noise, stats, *_strides(call), *_sizes(call, H), *groups,
            **flags, **tile.options,
        )  # fmt: skip

    run_fastest("forward", call, launch)


def _noise_alone(call: Call) -> Call:
    """Return the noise map as a call of its own, whose queries may have fewer heads than V's."""
    q2, k2 = call.noise
    return Call(q2, k2, None, None, call.v, None, None, call.seen, call.scale2, call.scale2)


def empty_results(q1: Tensor, v: Tensor, maps: int, save: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return the tensors that `forward` fills; without `save`, only the output has elements."""
    B, H, Tq, _ = q1.shape
    shape = (B, H, Tq, v.shape[-1])
    stats = (maps, B, H, Tq) if save else (0,)
    noise = shape if save and maps == 2 else (0,)
    return (q1.new_empty(shape), q1.new_empty(noise), q1.new_empty(stats, dtype=torch.float32))


def _decode(call: Call, out: Tensor) -> None:
    B, H, Tq, dv = out.shape
    group = _heads_with_the_same_keys(call)
    while group * Tq > DECODED_BLOCK:  # a smaller divisor; then keys are loaded more than once
        group = next(n for n in range(group - 1, 0, -1) if group % n == 0)
    groups = H // group
    BM = max(16, triton.next_power_of_2(group * Tq))
    two = call.q2 is not None

    def launch(tile: Tile) -> None:
        blocks = triton.cdiv(call.k1.shape[2], tile.BN)
        splits = max(1, min(blocks, triton.cdiv(2 * _processors(out.device), B * groups)))
        partial = out.new_empty((1 + two, splits, B * H * Tq, dv), dtype=torch.float32)
        stats = out.new_empty((2 * (1 + two), splits, B * H * Tq), dtype=torch.float32)
        decode_kernel[(splits, B * groups)](
            *_inputs(call), partial, stats, *_strides(call), *_sizes(call), group, groups,
            **_flags(call), **{**tile.options, "BM": BM},
        )  # fmt: skip
        merge_kernel[(Tq, B * H)](
            partial, stats, *_inputs(call)[5:7], out, *_lam_strides(call), H, Tq, splits,
            DV=dv, BDV=padded_width(dv), TWO=two, SINK=call.sink is not None,
        )  # fmt: skip

    run_fastest("decode", call, launch)


def _heads_with_the_same_keys(call: Call) -> int:
    """Return the size of the largest groups of query heads that share the keys of both maps."""
    H = call.q1.shape[1]
    return math.gcd(H // call.k1.shape[1], H // call.noise[1].shape[1])


@functools.cache
def _processors(device: torch.device) -> int:
    if device.type != "cuda":
        return 4  # the interpreter: some splits, so that merging is tested
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def backward(
    call: Call, dout: Tensor, out: Tensor, noise: Tensor, stats: Tensor
) -> tuple[Tensor | None, ...]:
    """Return the gradients of q1, k1, q2, k2, v, lam and sink; None for those not given.

    Args:
        call: As given to `forward`.
        dout: Gradient of the output [B, H, Tq, dv].
        out: Output.
        noise: A2 V, from `forward` with `save`.
        stats: Log-sum-exps.
    """
    (B, H, Tq, _), dv = call.q1.shape, call.v.shape[-1]
    dout = dout if dout.stride(-1) == 1 else dout.contiguous()
    deltas = torch.empty_like(stats)
    BM = 16
    row_products_kernel[(triton.cdiv(Tq, BM), B * H)](
        out, noise, dout, call.q1 if call.lam is None else call.lam, deltas,
        *dout.stride()[:3], *_lam_strides(call), H, Tq,
        DV=dv, BDV=padded_width(dv), BM=BM, TWO=call.q2 is not None,
    )  # fmt: skip
    dq1, dq2 = _query_gradients(call, dout, stats, deltas)
    dk1, dk2, dvs = _key_gradients(call, dout, stats, deltas)
    dlam = dsink = None
    if call.lam is not None:
        dlam = -deltas[1, ..., None]
    if call.sink is not None:
        share = torch.exp2(call.sink[:, None] * LOG2_E - stats[0])  # the sink's weight [B, H, Tq]
        dsink = -(share * deltas[0]).sum((0, 2))
    return dq1, dk1, dq2, dk2, dvs, dlam, dsink


def _query_gradients(
    call: Call, dout: Tensor, stats: Tensor, deltas: Tensor
) -> tuple[Tensor, Tensor | None]:
    B, H, Tq, _ = call.q1.shape
    dq1 = torch.empty_like(call.q1, memory_format=torch.contiguous_format)
    dq2 = None if call.q2 is None else _partial(call.q2, H)

    def launch(tile: Tile) -> None:
        dq_kernel[(triton.cdiv(Tq, tile.BM), B * H)](
            *_inputs(call), dout, stats, deltas, dq1, dq1 if dq2 is None else dq2,
            *_strides(call), *_sizes(call), *dout.stride()[:3], **_flags(call), **tile.options,
        )  # fmt: skip

    run_fastest("dq", call, launch)
    return dq1, None if call.q2 is None or dq2 is None else _summed(dq2, call.q2)


def _key_gradients(
    call: Call, dout: Tensor, stats: Tensor, deltas: Tensor
) -> tuple[Tensor, Tensor | None, Tensor]:
    B, H = call.q1.shape[:2]
    _, k2 = call.noise
    Tk, shared = call.k1.shape[2], call.k2 is None
    # Where the maps group their heads differently, these are smaller groups, whose gradients are
    # summed at the end.
    group = _heads_with_the_same_keys(call)
    groups = H // group
    dk1, dv = _partial(call.k1, groups), _partial(call.v, groups)
    dk2 = dk1 if shared else _partial(k2, groups)

    ranges = row_ranges(call.seen, call.q1.shape[2], Tk)
    strides, flags = (0, 0), _flags(call)
    del flags["PADDING"]
    if ranges is not None:
        strides = (ranges.stride(1) if ranges.shape[1] == B else 0, ranges.stride(0))
        flags["MODE"] = ROWS.value

    def launch(tile: Tile) -> None:
        dkv_kernel[(triton.cdiv(Tk, tile.BN), B * groups)](
            *_inputs(call), dout, stats, deltas, call.k1 if ranges is None else ranges,
            dk1, dk2, dv, *_strides(call), *_sizes(call), *dout.stride()[:3], *strides,
            group, groups, **flags, **tile.options,
        )  # fmt: skip

    run_fastest("dkv", call, launch)
    return _summed(dk1, call.k1), None if shared else _summed(dk2, k2), _summed(dv, call.v)


def _partial(t: Tensor, heads: int) -> Tensor:
    """Return where gradients of `heads` heads are written; in fp32 if they will be summed."""
    B, h, T, width = t.shape
    return t.new_empty(B, heads, T, width, dtype=t.dtype if heads == h else torch.float32)


def _summed(partial: Tensor, t: Tensor) -> Tensor:
    """Return the gradient of `t`, summed over the heads that share one of its heads."""
    if partial.shape[1] == t.shape[1]:
        return partial
    return partial.unflatten(1, (t.shape[1], -1)).sum(2).to(t.dtype)


def _inputs(call: Call) -> tuple[Tensor, ...]:
    """Return the tensors of a call in the kernels' order, q1 in place of those not given."""
    q1, seen = call.q1, call.seen
    optional = (call.lam, call.sink, seen.bounds, seen.padding, seen.key_range)
    given = (q1 if t is None else t for t in optional)
    q2, k2 = call.noise
    return q1, call.k1, q2, k2, call.v, *given


def _lam_strides(call: Call) -> tuple[int, ...]:
    return (0, 0, 0) if call.lam is None else call.lam.stride()[:3]


def _strides(call: Call) -> tuple[int, ...]:
    """Return strides of batch, head and row; 0 over the batch for what all sequences share."""
    seen, B = call.seen, call.q1.shape[0]
    bounds, padding = (0, 0), (0, 0)
    if seen.bounds is not None:
        bounds = (seen.bounds.stride(1) if seen.bounds.shape[1] == B else 0, seen.bounds.stride(0))
    if seen.padding is not None and seen.key_range is not None and seen.padding.shape[0] == B:
        padding = (seen.padding.stride(0), seen.key_range.stride(0))
    tensors = (call.q1, call.k1, *call.noise, call.v)
    heads = (stride for t in tensors for stride in t.stride()[:3])
    return *heads, *_lam_strides(call), *bounds, *padding


def _sizes(call: Call, heads: int | None = None) -> tuple[int | float, ...]:
    H, Tq, Tk = heads or call.q1.shape[1], call.q1.shape[2], call.k1.shape[2]
    groups = (H // t.shape[1] for t in (call.k1, *call.noise))
    return H, *groups, Tq, Tk, call.scale1 * LOG2_E, call.scale2 * LOG2_E


def _flags(call: Call) -> dict[str, Any]:
    """Return what a kernel is compiled for."""
    tensors = {"D": call.q1, "D2": call.noise[0], "DV": call.v}
    widths = {name: t.shape[-1] for name, t in tensors.items()}
    return {
        **widths,
        **{f"B{name}": padded_width(n) for name, n in widths.items()},
        "TWO": call.q2 is not None,
        "SHARED": call.shape.shared,
        "MODE": call.seen.mode,
        "PADDING": call.seen.padding is not None,
        "SINK": call.sink is not None,
        "PRECISION": "ieee" if torch.version.hip else "tf32x3",
    }
