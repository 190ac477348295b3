"""Differential attention beside standard attention of equal parameters and the forms in use.

Standard attention has 2H heads of width d. The differential forms have H heads with two maps of
width d and V of width 2d: the same projections, so the same parameters. Our own one-map kernel runs
standard attention's shapes: the ratio to it tells what the mechanism costs, the ratio to
`F.scaled_dot_product_attention` also what a better micro-kernel gains.
"""

import contextlib
import gc
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from antiphase.benchmarks import timing
from antiphase.cpu import cpu_name, guard_bf16
from antiphase.ops import attention, diff_attention, fused_cpu
from antiphase.ops.fused_cpu import native
from antiphase.ops.fused_cpu.abi import tile_rate

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
STANDARD = "standard (F.sdpa)"
ONE_MAP = "antiphase one map, C++"
FUSED = "antiphase fused, C++"
PYTHON = "antiphase fused, Python"
HALVES = "V in halves, 4 calls"
WIDE = "V wide, 2 calls"
LAM = 0.8

Call = Callable[[list[Tensor], list[Tensor]], Tensor]  # of standard's and the pair's inputs


@dataclass(frozen=True)
class Setting:
    """One cell of the table."""

    dtype: str
    length: int
    threads: int
    queries: int | None = None  # query rows, None for as many as keys
    heads: int = 16  # of standard attention; the differential forms have half
    width: int = 64
    batch: int = 1
    causal: bool = True

    @property
    def rows(self) -> int:
        return self.length if self.queries is None else self.queries

    @property
    def masked(self) -> bool:
        """Fewer query rows than keys are decoding: every row sees every key."""
        return self.causal and self.queries is None

    @property
    def flops(self) -> float:
        """Forward floating-point operations of standard attention, the visible part only."""
        pairs = self.rows * self.length
        if self.masked:
            pairs -= self.rows * (self.rows - 1) // 2
        return 4.0 * self.batch * self.heads * pairs * self.width


@dataclass
class Row:
    """What was measured of one alternative in one cell; `backward` is forward and backward."""

    name: str
    wall: timing.Ratio  # to standard attention
    cpu: timing.Ratio
    one_map: timing.Ratio | None  # wall time to our own one-map kernel, where it runs
    milliseconds: float
    gflops: float
    peak_bytes: int | None
    backward: bool


@dataclass
class Cell:
    """One cell of the table: its rows, and the matrix-product peak of the same run.

    The peak is the best of `torch.mm` (1024 cubed) and of our micro-kernel's tiles times threads.
    """

    setting: Setting
    gemm_gflops: float
    rows: list[Row]


def _inputs(s: Setting, grad: bool) -> tuple[list[Tensor], list[Tensor]]:
    """Return (q, k, v) of standard attention and (q1, k1, q2, k2, v) of the differential forms."""
    generator = torch.Generator().manual_seed(0)

    def draw(heads: int, length: int, width: int) -> Tensor:
        t = torch.randn(s.batch, heads, length, width, generator=generator).to(DTYPES[s.dtype])
        return t.requires_grad_(grad)

    half = s.heads // 2
    standard = [draw(s.heads, n, s.width) for n in (s.rows, s.length, s.length)]
    pairs = [draw(half, n, s.width) for n in (s.rows, s.length, s.rows, s.length)]
    return standard, [*pairs, draw(half, s.length, 2 * s.width)]


def _calls(s: Setting) -> dict[str, Call]:
    """Return every alternative as a function of the two kinds of inputs."""

    def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=s.masked)

    def halves(x: list[Tensor]) -> Tensor:
        q1, k1, q2, k2, v = x
        parts = [sdpa(q1, k1, w) - LAM * sdpa(q2, k2, w) for w in v.chunk(2, dim=-1)]
        return torch.cat(parts, dim=-1)

    def wide(x: list[Tensor]) -> Tensor:
        q1, k1, q2, k2, v = x
        return sdpa(q1, k1, v) - LAM * sdpa(q2, k2, v)

    def ours(backend: str) -> Call:
        def call(_: list[Tensor], x: list[Tensor]) -> Tensor:
            q1, k1, q2, k2, v = x
            return diff_attention(q1, k1, q2, k2, v, LAM, causal=s.masked, backend=backend)

        return call

    calls = {
        STANDARD: lambda x, _: sdpa(*x),
        ONE_MAP: lambda x, _: attention(*x, causal=s.masked, backend="fused_cpu"),
        FUSED: ours("fused_cpu"),
        PYTHON: ours("fused_cpu"),
        "antiphase sdpa (padded)": ours("sdpa"),
        HALVES: lambda _, x: halves(x),
        WIDE: lambda _, x: wide(x),
    }
    try:
        native.library()
    except native.Unavailable:
        del calls[ONE_MAP], calls[FUSED]
    # Wide V leaves the flash kernel: its maps are written down, several times in the backward.
    free = timing.available_bytes()
    if free is not None and 16 * 4.0 * s.batch * s.heads * s.rows * s.length > free:
        del calls[WIDE]
    return calls


def _works(s: Setting, backward: bool) -> dict[str, timing.Work]:
    """Return every alternative ready to run: forward without gradients, or forward and backward."""
    standard, differential = _inputs(s, grad=backward)

    def ready(name: str, call: Call) -> timing.Work:
        level = fused_cpu.python_level if name == PYTHON else contextlib.nullcontext

        def work() -> None:
            with level(), torch.set_grad_enabled(backward):
                out = call(standard, differential)
                if backward:
                    out.backward(torch.ones_like(out))
            for t in (*standard, *differential):
                t.grad = None

        return work

    return {name: ready(name, call) for name, call in _calls(s).items()}


def measure_cell(
    s: Setting, *, backward: bool, rounds: int, tick: Callable[[], None] = lambda: None
) -> Cell:
    """Measure every alternative in one cell; `tick` is called after each round."""
    threads = torch.get_num_threads()
    torch.set_num_threads(s.threads)
    gc.collect()
    gc.freeze()  # what is loaded already: the collections before each peak then take no time
    try:
        return _measure(s, backward, rounds, tick)
    finally:
        gc.unfreeze()
        torch.set_num_threads(threads)


def _measure(s: Setting, backward: bool, rounds: int, tick: Callable[[], None]) -> Cell:
    cell = Cell(s, 0.0, [])
    a = torch.randn(1024, 1024).to(DTYPES[s.dtype])
    gemm: list[float] = []

    def after_round() -> None:
        gemm.append(s.threads * _tile_gflops(s))
        tick()

    for with_backward in (False, True) if backward else (False,):
        works = _works(s, with_backward)
        samples = timing.interleave(
            {**works, "gemm": lambda: a @ a},
            rounds,
            after_round,
        )
        gemm += [2 * 1024**3 / x.wall * 1e-9 for x in samples.pop("gemm")]
        flops = s.flops * (3.5 if with_backward else 1.0)
        for name, times in samples.items():
            wall = timing.seconds(times, "wall")
            gc.collect()
            cell.rows.append(
                Row(
                    name=name,
                    wall=timing.ratio(times, samples[STANDARD], "wall"),
                    cpu=timing.ratio(times, samples[STANDARD], "cpu"),
                    one_map=timing.ratio(times, samples[ONE_MAP], "wall")
                    if ONE_MAP in samples
                    else None,
                    milliseconds=1e3 * wall,
                    gflops=flops / wall * 1e-9,
                    peak_bytes=timing.peak_extra_bytes(works[name]),
                    backward=with_backward,
                )
            )
    cell.gemm_gflops = max(gemm)
    return cell


def _tile_gflops(s: Setting) -> float:
    """Time the micro-kernel that this dtype runs on, one thread; 0 without the C++ level."""
    try:
        library = native.library()
    except native.Unavailable:
        return 0.0
    kernel = library.bf16_kernel if s.dtype == "bf16" else 0
    return tile_rate(library.handle, kernel)


def machine() -> dict[str, Any]:
    """Describe what the figures were measured on."""
    try:
        rates = native.library().rates
    except native.Unavailable as reason:
        rates = {"unavailable": str(reason)}  # type: ignore[dict-item]
    return {
        "cpu": cpu_name(),
        "cores": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "onednn_cap": guard_bf16(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "micro_kernels_gflops": rates,
    }


def as_json(cells: list[Cell], about: dict[str, Any]) -> dict[str, Any]:
    """Return the whole run as plain data."""
    return {"machine": about, "cells": [asdict(cell) for cell in cells]}
