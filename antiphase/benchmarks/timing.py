"""Time alternatives on a noisy machine, and measure the peak memory of each.

Each round runs every alternative once, so that a slow phase of the machine affects all of them.
Ratios are taken per round, to the baseline of the same round; the median of the rounds is reported.
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
    """One timed run, in seconds: wall time, and CPU time of all threads."""

    wall: float
    cpu: float


@dataclass(frozen=True)
class Ratio:
    """The median of the ratios per round, with its quartiles."""

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
    """Time every alternative once per round.

    Args:
        alternatives: What to time, by name.
        rounds: Number of measured rounds; one warm-up round comes first.
        after_round: Called after each round.

    Returns:
        The samples of each alternative, one per measured round.
    """
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
        getattr(sample, clock) / getattr(reference, clock)
        for sample, reference in zip(samples, baseline, strict=True)
    )
    quarter = len(values) // 4
    return Ratio(statistics.median(values), values[quarter], values[-1 - quarter])


def seconds(samples: list[Sample], clock: str) -> float:
    """Return the median time, by "wall" or "cpu" time."""
    return float(statistics.median(getattr(sample, clock) for sample in samples))


def wait_for(device: str) -> None:
    """Wait until a GPU has done what it was given; nothing to wait for on a CPU."""
    if device != "cpu":
        import torch

        torch.cuda.synchronize(device)


def peak_extra_bytes(work: Work, device: str = "cpu") -> int | None:
    """Return by how much the memory in use rises while `work` runs; None where it is not reported.

    Args:
        work: What to run.
        device: On a GPU, its allocated memory; otherwise the resident memory of this process.
    """
    if device != "cpu":
        return _gpu_peak(work, device)
    status, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # else reused memory, freed before, would not count
    try:
        reset.write_text("5")  # resets the recorded peak
    except OSError:
        return None
    before = _status_bytes(status, "VmRSS")
    result = work()
    peak = _status_bytes(status, "VmHWM")
    del result
    return peak - before


def _gpu_peak(work: Work, device: str) -> int:
    import torch

    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    work()
    return int(torch.cuda.max_memory_allocated(device)) - before


def available_bytes() -> int | None:
    """Return the available memory, None where the system does not report it."""
    try:
        return _status_bytes(Path("/proc/meminfo"), "MemAvailable")
    except (OSError, StopIteration):
        return None


def _status_bytes(status: Path, name: str) -> int:
    line = next(line for line in status.read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024
