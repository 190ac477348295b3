"""Attention calls of real batches, each against a call that says what its time should be.

| rows | what | compared with |
|---|---|---|
| padded | a batch padded on the left or on the right | the same call without a mask |
| packed | several documents in one sequence | one document, in proportion to what is visible |
| window | a sliding window | no window, in proportion to what is visible |
| v2 | DIFF V2: two queries per head, shared keys | our own kernel with one map, same keys |
| heads | odd numbers of heads | one head more, in proportion to the heads |
| overhead | one query and 64 keys, without gradients | `F.scaled_dot_product_attention` |

All calls but the last are causal and run on `fused_cpu`, on a GPU on `triton`.
"""

import dataclasses
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from antiphase.benchmarks import timing
from antiphase.benchmarks.attention import LAM, AttentionSetting, inputs
from antiphase.ops import attention, diff_attention

Call = Callable[[], Tensor]
OVERHEAD = "overhead"
OVERHEAD_KEYS = 64
OVERHEAD_CALLS = 200  # per measurement: one call is too short for the clock


@dataclass(frozen=True)
class Contest:
    """Calls that are compared with one baseline, and the tensors that have gradients."""

    baseline: str
    against: Call
    calls: dict[str, tuple[Call, float]]  # by name, with the share of the baseline's work
    tensors: tuple[Tensor, ...]


@dataclass(frozen=True)
class Case:
    """The measurements of one call: ratios to its share of the baseline's time."""

    setting: AttentionSetting
    rows: str
    name: str
    baseline: str
    share: float
    backward: bool  # forward and backward, or forward only
    wall: timing.Ratio
    cpu: timing.Ratio
    milliseconds: float
    baseline_milliseconds: float
    peak_bytes: int | None
    baseline_peak_bytes: int | None


def measure_cases(
    setting: AttentionSetting,
    rows: str,
    *,
    backward: bool,
    rounds: int,
    tick: Callable[[], None] = lambda: None,
) -> list[Case]:
    """Measure the cases of one kind in one setting.

    Args:
        setting: Shapes, dtype and threads.
        rows: A name from `KINDS`.
        backward: Measure forward and backward, too (never with "overhead").
        rounds: Number of measured rounds.
        tick: Called after each round.

    Returns:
        One entry per case and pass.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(setting.threads)
    try:
        found = []
        for with_backward in passes(rows, backward):
            for contest in KINDS[rows](setting, with_backward):
                found += _measure(setting, rows, contest, with_backward, rounds, tick)
        return found
    finally:
        torch.set_num_threads(threads)


def passes(rows: str, backward: bool) -> tuple[bool, ...]:
    """Return which passes are measured: forward (False), and forward and backward (True)."""
    return (False, True) if backward and rows != OVERHEAD else (False,)


def contests(rows: str) -> int:
    """Return the number of comparisons of a kind, for the progress bar."""
    return len(ODD_HEADS) if rows == "heads" else 1


def _measure(
    setting: AttentionSetting,
    rows: str,
    contest: Contest,
    backward: bool,
    rounds: int,
    tick: Callable[[], None],
) -> list[Case]:
    repeats = OVERHEAD_CALLS if rows == OVERHEAD else 1

    def ready(call: Call) -> timing.Work:
        def work() -> None:
            with torch.set_grad_enabled(backward):
                for _ in range(repeats):
                    out = call()
                if backward:
                    out.backward(torch.ones_like(out))
            for t in contest.tensors:
                t.grad = None
            timing.wait_for(setting.device)

        return work

    works = {"": ready(contest.against)}
    works |= {name: ready(call) for name, (call, _) in contest.calls.items()}
    gc.collect()
    samples = timing.interleave(works, rounds, tick)
    peaks = {name: timing.peak_extra_bytes(work, setting.device) for name, work in works.items()}
    return [
        Case(
            setting=setting,
            rows=rows,
            name=name,
            baseline=contest.baseline,
            share=share,
            backward=backward,
            wall=_divided(timing.ratio(samples[name], samples[""], "wall"), share),
            cpu=_divided(timing.ratio(samples[name], samples[""], "cpu"), share),
            milliseconds=1e3 * timing.seconds(samples[name], "wall") / repeats,
            baseline_milliseconds=1e3 * timing.seconds(samples[""], "wall") / repeats,
            peak_bytes=peaks[name],
            baseline_peak_bytes=peaks[""],
        )
        for name, (_, share) in contest.calls.items()
    ]


def _ours(setting: AttentionSetting) -> dict[str, Any]:
    return {"causal": True, "backend": setting.backend}


def _divided(ratio: timing.Ratio, share: float) -> timing.Ratio:
    return timing.Ratio(ratio.median / share, ratio.low / share, ratio.high / share)


def _padded(setting: AttentionSetting, grad: bool) -> Iterator[Contest]:
    ours = _ours(setting)
    setting = dataclasses.replace(setting, batch=max(setting.batch, 4))
    _, (q1, k1, q2, k2, v) = inputs(setting, grad)
    B, T = setting.batch, setting.length
    lengths = torch.linspace(T, T / 2, B, device=q1.device).long()[:, None]  # from full to half
    right = (torch.arange(T, device=q1.device) < lengths)[:, None, None, :]

    def masked(mask: Tensor | None) -> Call:
        return lambda: diff_attention(q1, k1, q2, k2, v, LAM, mask=mask, **ours)

    calls = {
        f"right padding, batch of {B}": (masked(right), 1.0),
        f"left padding, batch of {B}": (masked(right.flip(-1)), 1.0),
    }
    yield Contest("the same call without a mask", masked(None), calls, (q1, k1, q2, k2, v))


def _packed(setting: AttentionSetting, grad: bool) -> Iterator[Contest]:
    ours = _ours(setting)
    _, (q1, k1, q2, k2, v) = inputs(setting, grad)
    T = setting.length

    def packed(documents: Tensor | None) -> Call:
        return lambda: diff_attention(q1, k1, q2, k2, v, LAM, documents=documents, **ours)

    calls = {}
    for n in (4, 16):
        documents = torch.arange(T, device=q1.device) * n // T
        sizes = documents.unique(return_counts=True)[1].tolist()
        visible = sum(pairs(size, size) for size in sizes) / pairs(T, T)
        calls[f"{n} documents"] = (packed(documents), visible)
    baseline = "one document, in proportion to what is visible"
    yield Contest(baseline, packed(None), calls, (q1, k1, q2, k2, v))


def _window(setting: AttentionSetting, grad: bool) -> Iterator[Contest]:
    ours = _ours(setting)
    _, (q1, k1, q2, k2, v) = inputs(setting, grad)
    T = setting.length

    def windowed(window: int | None, keep_first: int = 0) -> Call:
        options = {"window": window, "keep_first": keep_first, **ours}
        return lambda: diff_attention(q1, k1, q2, k2, v, LAM, **options)

    calls = {}
    for window, first in ((T // 4, 0), (T // 16, 0), (T // 16, 4)):
        window = max(window, 1)
        # Beside the window: the first keys that it has left.
        visible = pairs(T, window) + sum(min(n, first) for n in range(1, T - window + 1))
        name = f"window of {window}" + (f" and the first {first} keys" if first else "")
        calls[name] = (windowed(window, first), visible / pairs(T, T))
    baseline = "no window, in proportion to what is visible"
    yield Contest(baseline, windowed(None), calls, (q1, k1, q2, k2, v))


def pairs(length: int, window: int) -> int:
    """Return the number of (query, key) pairs of a causal call with a window."""
    window = min(window, length)
    return window * (window + 1) // 2 + (length - window) * window


def _v2(setting: AttentionSetting, grad: bool) -> Iterator[Contest]:
    ours = _ours(setting)
    (q, k, v), _ = inputs(setting, grad)
    q2 = torch.randn_like(q).requires_grad_(grad)
    lam = torch.rand(*q.shape[:3], 1, device=q.device).requires_grad_(grad)
    one_map = lambda: attention(q, k, v, **ours)  # noqa: E731
    calls = {"DIFF V2": (lambda: diff_attention(q, k, q2, k, v, lam, **ours), 1.0)}
    yield Contest("our own kernel with one map, same keys", one_map, calls, (q, k, v, q2, lam))


ODD_HEADS = (1, 3, 5)


def _heads(setting: AttentionSetting, grad: bool) -> Iterator[Contest]:
    ours = _ours(setting)

    def prepared(heads: int) -> tuple[Call, list[Tensor]]:
        _, tensors = inputs(dataclasses.replace(setting, heads=2 * heads), grad)
        q1, k1, q2, k2, v = tensors
        return lambda: diff_attention(q1, k1, q2, k2, v, LAM, **ours), tensors

    for n in ODD_HEADS:
        (odd, tensors), (even, others) = prepared(n), prepared(n + 1)
        calls = {f"{n} to {n + 1} heads": (odd, n / (n + 1))}
        baseline = "one head more, in proportion to the heads"
        yield Contest(baseline, even, calls, (*tensors, *others))


def _overhead(setting: AttentionSetting, grad: bool) -> Iterator[Contest]:
    ours = _ours(setting)
    setting = dataclasses.replace(setting, length=OVERHEAD_KEYS, queries=1)
    (q, k, v), (q1, k1, q2, k2, wide_v) = inputs(setting, grad)
    lam, twin = torch.tensor(LAM, device=q.device), torch.randn_like(q)
    tokens = torch.arange(OVERHEAD_KEYS, device=q.device) > 7
    mask = tokens.expand(setting.batch, 1, 1, -1)
    calls = {
        "one map": (lambda: attention(q, k, v, **ours), 1.0),
        "DIFF V1": (lambda: diff_attention(q1, k1, q2, k2, wide_v, lam, **ours), 1.0),
        "DIFF V2": (lambda: diff_attention(q, k, twin, k, v, lam, **ours), 1.0),
        "DIFF V1, padded": (
            lambda: diff_attention(q1, k1, q2, k2, wide_v, lam, mask=mask, **ours),
            1.0,
        ),
    }
    sdpa = lambda: F.scaled_dot_product_attention(q, k, v)  # noqa: E731
    yield Contest("F.sdpa", sdpa, calls, (q, k, v))


KINDS: dict[str, Callable[[AttentionSetting, bool], Iterator[Contest]]] = {
    "padded": _padded,
    "packed": _packed,
    "window": _window,
    "v2": _v2,
    "heads": _heads,
    OVERHEAD: _overhead,
}
