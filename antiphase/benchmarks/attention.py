"""Differential attention against standard attention of equal parameters, and other forms in use.

Standard attention has 2H heads of width d. The differential forms have H heads with two maps of
width d and V of width 2d: the same projections, so the same parameters. Our own one-map kernel runs
the shapes of standard attention. The ratio to it is the cost of the mechanism; the ratio to
`F.scaled_dot_product_attention` also contains the gain of a faster micro-kernel.

In 16 bits, the baseline is also measured in fp32, in the same rounds. PyTorch has no fast kernel
for each combination of processor, dtype and pass: where the baseline takes more than 3 times the
CPU time of fp32, the cell has a flag, for ratios to it say little.
"""

import contextlib
import gc
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from antiphase.benchmarks import timing
from antiphase.cpu import cpu_name, guard_bf16
from antiphase.ops import attention, diff_attention, fused_cpu
from antiphase.ops.fused_cpu import native
from antiphase.ops.fused_cpu.abi import tile_rate

if TYPE_CHECKING:
    from antiphase.benchmarks.attention_cases import Case

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
STANDARD = "standard (F.sdpa)"
STANDARD_FP32 = "the same in fp32"
ONE_MAP = "antiphase one map, C++"
FUSED = "antiphase fused, C++"
ONE_MAP_GPU = "antiphase one map, Triton"
FUSED_GPU = "antiphase fused, Triton"
PYTHON = "antiphase fused, Python"
HALVES = "V in halves, 4 calls"
WIDE = "V wide, 2 calls"
LAM = 0.8
CPU_PRODUCT, GPU_PRODUCT = 1024, 8192  # size of the matrices whose product is timed beside
PATHOLOGICAL = 3.0  # times the fp32 time of the baseline
LONG_LENGTHS, LONG_HEADS, LONG_ROUNDS = (32768, 65536), 2, 3
LONG_NAMES = frozenset({STANDARD, STANDARD_FP32, ONE_MAP, FUSED, ONE_MAP_GPU, FUSED_GPU})

# Takes the inputs of standard attention and those of the differential forms.
AttentionFunction = Callable[[list[Tensor], list[Tensor]], Tensor]


@dataclass(frozen=True)
class AttentionSetting:
    """The shapes, dtype and threads of one cell."""

    dtype: str
    length: int
    threads: int
    queries: int | None = None  # number of query rows, None for as many as keys
    heads: int = 16  # of standard attention; the differential forms have half
    width: int = 64
    batch: int = 1
    causal: bool = True
    device: str = "cpu"

    @property
    def backend(self) -> str:
        """Return the fused backend of the device."""
        return "fused_cpu" if self.device == "cpu" else "triton"

    @property
    def rows(self) -> int:
        """Return the number of query rows."""
        return self.length if self.queries is None else self.queries

    @property
    def masked(self) -> bool:
        """Tell whether the call is causal; in decoding, every row attends to every key."""
        return self.causal and self.queries is None

    @property
    def flops(self) -> float:
        """Return the forward FLOPs of standard attention, of the unmasked part only."""
        pairs = self.rows * self.length
        if self.masked:
            pairs -= self.rows * (self.rows - 1) // 2
        return 4.0 * self.batch * self.heads * pairs * self.width


@dataclass
class Row:
    """The measurements of one alternative in one cell."""

    name: str
    wall: timing.Ratio  # to standard attention
    cpu: timing.Ratio
    one_map: timing.Ratio | None  # wall time to our own one-map kernel, where it runs
    milliseconds: float
    gflops: float
    peak_bytes: int | None
    backward: bool  # forward and backward, or forward only


@dataclass
class Cell:
    """One setting: its rows, and the fastest matrix product (GEMM) of the same run.

    That is the best of `torch.mm` (1024 x 1024; 8192 x 8192 on a GPU) and of our micro-kernel's
    tiles times threads.
    """

    setting: AttentionSetting
    gemm_gflops: float
    rows: list[Row]
    flags: list[str] = field(default_factory=list)  # passes whose baseline is pathological


def inputs(setting: AttentionSetting, grad: bool) -> tuple[list[Tensor], list[Tensor]]:
    """Return (q, k, v) of standard attention and (q1, k1, q2, k2, v) of the differential forms.

    Args:
        setting: Shapes and dtype.
        grad: Whether they require gradients.
    """
    generator = torch.Generator().manual_seed(0)

    def draw(heads: int, length: int, width: int) -> Tensor:
        t = torch.randn(setting.batch, heads, length, width, generator=generator)
        return t.to(setting.device, DTYPES[setting.dtype]).requires_grad_(grad)

    half = setting.heads // 2
    standard = [
        draw(setting.heads, n, setting.width)
        for n in (setting.rows, setting.length, setting.length)
    ]
    pairs = [
        draw(half, n, setting.width)
        for n in (setting.rows, setting.length, setting.rows, setting.length)
    ]
    return standard, [*pairs, draw(half, setting.length, 2 * setting.width)]


def _calls(setting: AttentionSetting) -> dict[str, AttentionFunction]:
    """Return every alternative as a function of both kinds of inputs."""

    def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=setting.masked)

    def halves(inputs: list[Tensor]) -> Tensor:
        q1, k1, q2, k2, v = inputs
        parts = [sdpa(q1, k1, half) - LAM * sdpa(q2, k2, half) for half in v.chunk(2, dim=-1)]
        return torch.cat(parts, dim=-1)

    def wide(inputs: list[Tensor]) -> Tensor:
        q1, k1, q2, k2, v = inputs
        return sdpa(q1, k1, v) - LAM * sdpa(q2, k2, v)

    def ours(backend: str) -> AttentionFunction:
        def call(_: list[Tensor], inputs: list[Tensor]) -> Tensor:
            q1, k1, q2, k2, v = inputs
            return diff_attention(q1, k1, q2, k2, v, LAM, causal=setting.masked, backend=backend)

        return call

    def one_map(standard: list[Tensor], _: list[Tensor]) -> Tensor:
        return attention(*standard, causal=setting.masked, backend=setting.backend)

    gpu = setting.device != "cpu"
    calls: dict[str, AttentionFunction] = {
        STANDARD: lambda standard, _: sdpa(*standard),
        ONE_MAP_GPU if gpu else ONE_MAP: one_map,
        FUSED_GPU if gpu else FUSED: ours(setting.backend),
        PYTHON: ours("fused_cpu"),
        "antiphase sdpa (padded)": ours("sdpa"),
        HALVES: lambda _, differential: halves(differential),
        WIDE: lambda _, differential: wide(differential),
    }
    if gpu:
        del calls[PYTHON]
    else:
        try:
            native.library()
        except native.Unavailable:
            del calls[ONE_MAP], calls[FUSED]
    # Wide V cannot use the flash kernel: its maps are materialised, several times in backward.
    free = torch.cuda.mem_get_info(setting.device)[0] if gpu else timing.available_bytes()
    if (
        free is not None
        and 16 * 4.0 * setting.batch * setting.heads * setting.rows * setting.length > free
    ):
        del calls[WIDE]
    return calls


def _works(
    setting: AttentionSetting, backward: bool, only: frozenset[str]
) -> dict[str, timing.Work]:
    """Return every alternative ready to run: forward without gradients, or forward and backward."""
    standard, differential = inputs(setting, grad=backward)
    calls = _calls(setting)
    wide = [t.detach().float().requires_grad_(backward) for t in standard]
    if setting.dtype != "fp32":
        calls[STANDARD_FP32] = lambda *_: calls[STANDARD](wide, [])

    def ready(name: str, call: AttentionFunction) -> timing.Work:
        level = fused_cpu.python_level if name == PYTHON else contextlib.nullcontext

        def work() -> None:
            with level(), torch.set_grad_enabled(backward):
                out = call(standard, differential)
                if backward:
                    out.backward(torch.ones_like(out))
            for t in (*standard, *wide, *differential):
                t.grad = None
            timing.wait_for(setting.device)

        return work

    return {name: ready(name, call) for name, call in calls.items() if not only or name in only}


def measure_cell(
    setting: AttentionSetting,
    *,
    backward: bool,
    rounds: int,
    tick: Callable[[], None] = lambda: None,
    only: frozenset[str] = frozenset(),
) -> Cell:
    """Measure every alternative in one setting.

    Args:
        setting: Shapes, dtype and threads.
        backward: Measure forward and backward, too.
        rounds: Number of measured rounds.
        tick: Called after each round.
        only: Names of the alternatives to measure; all if empty.

    Returns:
        The measurements of all alternatives.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(setting.threads)
    gc.collect()
    gc.freeze()  # what is loaded already: the collections before each peak then take no time
    try:
        return _measure(setting, backward, rounds, tick, only)
    finally:
        gc.unfreeze()
        torch.set_num_threads(threads)


def _measure(
    setting: AttentionSetting,
    backward: bool,
    rounds: int,
    tick: Callable[[], None],
    only: frozenset[str],
) -> Cell:
    cell = Cell(setting, 0.0, [])
    n = CPU_PRODUCT if setting.device == "cpu" else GPU_PRODUCT
    matrix = torch.randn(n, n).to(setting.device, DTYPES[setting.dtype])
    gemm: list[float] = []

    def after_round() -> None:
        gemm.append(setting.threads * _tile_gflops(setting))
        tick()

    for with_backward in (False, True) if backward else (False,):
        works = _works(setting, with_backward, only)

        def product() -> None:
            _ = matrix @ matrix
            timing.wait_for(setting.device)

        samples = timing.interleave({**works, "gemm": product}, rounds, after_round)
        gemm += [2 * n**3 / sample.wall * 1e-9 for sample in samples.pop("gemm")]
        one_map = samples.get(ONE_MAP) or samples.get(ONE_MAP_GPU)
        flops = setting.flops * (3.5 if with_backward else 1.0)
        for name, times in samples.items():
            wall = timing.seconds(times, "wall")
            gc.collect()
            cell.rows.append(
                Row(
                    name=name,
                    wall=timing.ratio(times, samples[STANDARD], "wall"),
                    cpu=timing.ratio(times, samples[STANDARD], "cpu"),
                    one_map=None if one_map is None else timing.ratio(times, one_map, "wall"),
                    milliseconds=1e3 * wall,
                    gflops=flops / wall * 1e-9,
                    peak_bytes=timing.peak_extra_bytes(works[name], setting.device),
                    backward=with_backward,
                )
            )
        cell.flags += pathological(cell.rows, with_backward)
    cell.gemm_gflops = max(gemm)
    return cell


def pathological(rows: list[Row], backward: bool) -> list[str]:
    """Return a sentence if the baseline of a pass is pathologically slow, else nothing.

    CPU time decides: it does not count the time of other processes.

    Args:
        rows: Of one cell.
        backward: Of the pass.
    """
    for row in rows:
        slower = 1 / row.cpu.median  # the same FLOPs
        if row.name == STANDARD_FP32 and row.backward == backward and slower > PATHOLOGICAL:
            part = "forward + backward" if backward else "forward"
            return [f"{part}: the baseline takes {slower:.1f} times as long as in fp32"]
    return []


def long_settings(setting: AttentionSetting) -> list[AttentionSetting]:
    """Return settings with long contexts and few heads, otherwise like this one."""
    heads = min(setting.heads, LONG_HEADS)
    return [replace(setting, length=n, queries=None, heads=heads, batch=1) for n in LONG_LENGTHS]


def _tile_gflops(setting: AttentionSetting) -> float:
    """Time the micro-kernel of this dtype on one thread; 0 without the C++ level."""
    if setting.device != "cpu":
        return 0.0
    try:
        library = native.library()
    except native.Unavailable:
        return 0.0
    kernel = library.bf16_kernel if setting.dtype == "bf16" else 0
    return tile_rate(library.handle, kernel)


def machine(device: str = "cpu") -> dict[str, Any]:
    """Describe the machine that the figures were measured on."""
    try:
        rates = native.library().rates
    except native.Unavailable as reason:
        rates = {"unavailable": str(reason)}  # type: ignore[dict-item]
    gpu = {} if device == "cpu" else {"gpu": torch.cuda.get_device_name(device)}
    return {
        **gpu,
        "cpu": cpu_name(),
        "cores": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "onednn_cap": guard_bf16(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "micro_kernels_gflops": rates,
    }


def as_json(cells: list[Cell], cases: list["Case"], about: dict[str, Any]) -> dict[str, Any]:
    """Return all measurements as plain data."""
    return {
        "machine": about,
        "cells": [asdict(cell) for cell in cells],
        "cases": [asdict(case) for case in cases],
    }
