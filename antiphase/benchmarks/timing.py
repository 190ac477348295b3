"""Time alternatives fairly on a noisy machine, and see how much memory each needs at its peak.

Each round runs every alternative once, so that a slow spell hits all alike; an alternative's ratio
is taken round by round against the baseline of the same round, and the median of the rounds counts.
"""

import contextlib
import ctypes
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Work = Callable[[], object]


@dataclass(frozen=True)
class Sample:
    """One timed run: seconds on the wall and seconds of CPU over all threads."""

    wall: float
    cpu: float


@dataclass(frozen=True)
class Ratio:
    """A median of per-round ratios with its quartiles."""

    median: float
    low: float
    high: float


def time_once(work: Work) -> Sample:
    """Run `work` once and return its time."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return Sample(time.perf_counter() - wall, time.process_time() - cpu)


def interleave(
    alternatives: dict[str, Work], rounds: int, after_round: Callable[[], None] = lambda: None
) -> dict[str, list[Sample]]:
    """Run every alternative once a round, after one round that does not count."""
    samples: dict[str, list[Sample]] = {name: [] for name in alternatives}
    for round_number in range(rounds + 1):
        for name, work in alternatives.items():
            sample = time_once(work)
            if round_number:
                samples[name].append(sample)
        after_round()
    return samples


def ratio(samples: list[Sample], baseline: list[Sample], clock: str) -> Ratio:
    """Return the median ratio to the baseline of the same round, by "wall" or "cpu" time."""
    values = sorted(
        getattr(s, clock) / getattr(b, clock) for s, b in zip(samples, baseline, strict=True)
    )
    quarter = len(values) // 4
    return Ratio(statistics.median(values), values[quarter], values[-1 - quarter])


def seconds(samples: list[Sample], clock: str) -> float:
    """Return the median time."""
    return float(statistics.median(getattr(s, clock) for s in samples))


def peak_extra_bytes(work: Work) -> int | None:
    """Return how far resident memory rises above its start while `work` runs (Linux only)."""
    status, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # else memory freed by others would not count
    try:
        reset.write_text("5")  # forget the peak so far
    except OSError:
        return None
    before = _field(status, "VmRSS")
    result = work()
    peak = _field(status, "VmHWM")
    del result
    return peak - before


def _field(status: Path, name: str) -> int:
    line = next(x for x in status.read_text().splitlines() if x.startswith(name))
    return int(line.split()[1]) * 1024


def available_bytes() -> int | None:
    """Return the memory that is free to use, None where the system does not say."""
    try:
        return _field(Path("/proc/meminfo"), "MemAvailable")
    except (OSError, StopIteration):
        return None
