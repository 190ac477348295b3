"""Random calls against the formula in fp64.

    python -m tests.ops.fuzz --calls 1000 --gradients 200 --seconds 600 --seed 0

Each seed is one call of `random_calls.py`. `--calls` of them run without gradients, and
`--gradients` of them (again) with gradients, until `--seconds` are over. Calls run in chunks, each
in a process of its own, so that a crash is counted and the campaign goes on. The exit code is 1 if
any call failed; every failure is printed with the command that repeats it.
"""

import argparse
import json
import math
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from antiphase.ops.fused_cpu import native
from tests.ops.formula import Expected, expected
from tests.ops.random_calls import DTYPES, Call, draw

CHUNK = 2000  # calls per process
HANG_SECONDS = 300  # a call that takes longer is counted as a crash
ROUNDOFF = {
    torch.float64: 2.0**-53,
    torch.float32: 2.0**-24,
    torch.bfloat16: 2.0**-8,
    torch.float16: 2.0**-11,
}


def tolerance(call: Call, dtype: torch.dtype, scores: float) -> float:
    """Return the largest error of a result, relative to its magnitude (`formula.Expected`).

    Sums of up to 400 terms and the exponential are accurate to 128 roundoffs of the statistics'
    dtype, which is what standard attention needs, too (`test_fuzz.py`). A score is off by a few
    roundoffs of its size, and weights by as much relative to themselves. In 16 bits, the maps,
    their combination and the result are each rounded once: 4 roundoffs. The formula is itself in
    fp64, so in that dtype both are off by as much.

    Args:
        call: The call.
        dtype: Dtype of the result.
        scores: The largest score.
    """
    statistics = ROUNDOFF[torch.float64 if call.dtype == torch.float64 else torch.float32]
    rounding = max(ROUNDOFF[call.dtype], ROUNDOFF[dtype])
    inexact = 2 if call.dtype == torch.float64 else 1
    return 4 * rounding + inexact * (128 + 8 * scores) * statistics


@dataclass(frozen=True)
class Failure:
    """What is wrong with a call."""

    kind: str  # "error", "non-finite" or "mismatch"
    reason: str


def check(call: Call, *, gradients: bool) -> Failure | None:
    """Run a call and compare its output and gradients with the formula; None if all is well."""
    leaves: dict[int, Tensor] = {}
    for name, t in call.tensors.items():
        needs_grad = gradients and name in call.differentiated
        leaf = leaves.setdefault(id(t), t.detach())
        leaf.requires_grad_(leaf.requires_grad or needs_grad)
    tensors = {name: leaves[id(t)] for name, t in call.tensors.items()}
    dout = torch.randn(*call.sizes[:3], call.tensors["v"].shape[3]).to(call.dtype)
    results: list[dict[str, Tensor]] = []
    try:
        with call.environment():
            if gradients:
                out = call.run(tensors)
                names = sorted(call.differentiated)
                grads = torch.autograd.grad(out, [tensors[n] for n in names], dout)
                results = [{"out": out.detach(), **dict(zip(names, grads, strict=True))}]
            else:
                with torch.no_grad():
                    results = [{"out": call.run(tensors)}]
                with torch.inference_mode():  # another layout, for what is kept between calls
                    copies = {
                        i: t.clone(memory_format=torch.contiguous_format) for i, t in leaves.items()
                    }
                    same = {name: copies[id(t)] for name, t in call.tensors.items()}
                    results.append({"out": call.run(same)})
    except Exception as error:
        return Failure("error", f"{type(error).__name__}: {error}")
    want = expected(call, dout if gradients else None)
    return next(filter(None, (_compare(call, found, want) for found in results)), None)


def _compare(call: Call, found: dict[str, Tensor], want: Expected) -> Failure | None:
    for name, result in found.items():
        value = want.values[name]
        dtype = call.dtype if name == "out" else call.tensors[name].dtype
        if result.shape != value.shape or result.dtype != dtype:
            got = f"{result.dtype} {list(result.shape)}"
            return Failure("mismatch", f"{name} is {got}, expected {dtype} {list(value.shape)}")
        if not torch.isfinite(result).all():
            count = int((~torch.isfinite(result)).sum())
            return Failure("non-finite", f"{count} of {result.numel()} elements of {name}")
        error = float(relative_error(result, value, want.magnitudes[name]))
        allowed = tolerance(call, dtype, want.scores)
        if error > allowed:
            return Failure("mismatch", f"{name} is off by {error:.2g}, allowed is {allowed:.2g}")
    return None


def relative_error(result: Tensor, value: Tensor, magnitude: Tensor) -> Tensor:
    """Return the largest error of an element relative to its magnitude.

    Small magnitudes count as 1 % of the largest and at least as 1e-30: weights below the smallest
    number of fp32, 1e-38, may be zero. What the dtype of the result cannot hold, because it is
    between its smallest numbers, is no error.
    """
    info = torch.finfo(result.dtype)
    least = magnitude.max() / 100 + 1e-30
    error = (result.double() - value).abs() - info.tiny * info.eps / 2
    return (error.clamp(min=0) / magnitude.clamp(min=least)).max()


@dataclass
class Stream:
    """A number of calls from a seed on, with or without gradients."""

    gradients: bool
    first: int
    count: int
    level: str | None = None  # None: drawn
    done: int = 0

    @property
    def seed(self) -> int:
        """Return the seed of the next call."""
        return self.first + self.done

    @property
    def left(self) -> int:
        """Return the number of calls that are not done."""
        return self.count - self.done

    def command(self, seed: int, count: int) -> str:
        """Return the command that runs `count` calls of this kind."""
        calls, gradients = (0, count) if self.gradients else (count, 0)
        level = "" if self.level is None else f" --level {self.level}"
        counts = f"--calls {calls} --gradients {gradients}"
        return f"python -m tests.ops.fuzz --seed {seed} {counts}{level}"


def work(stream: Stream, seconds: float) -> None:
    """Run calls in this process; print a line before and after each."""
    deadline = time.monotonic() + seconds
    while stream.left and time.monotonic() < deadline:
        print(json.dumps({"seed": stream.seed}), flush=True)
        signal.alarm(HANG_SECONDS)
        call = draw(stream.seed, stream.level)
        torch.manual_seed(stream.seed)
        failure = check(call, gradients=stream.gradients)
        result = None if failure is None else (failure.kind, failure.reason, str(call))
        print(json.dumps({"kinds": call.kinds(), "failure": result}), flush=True)
        stream.done += 1
    signal.alarm(0)


def work_elsewhere(stream: Stream, seconds: float) -> Iterator[dict[str, Any]]:
    """Run at most a chunk of calls in another process; yield its lines after each call."""
    command = stream.command(stream.seed, min(CHUNK, stream.left)).split()[1:]
    command = [sys.executable, *command, "--seconds", str(seconds), "--worker"]
    started = False
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            report = json.loads(line)
            started = "seed" in report
            if not started:
                stream.done += 1
                yield report
    if process.returncode:
        if not started:
            raise RuntimeError(f"{' '.join(command)} ended with exit code {process.returncode}")
        code = process.returncode
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        stream.done += 1
        yield {"kinds": [], "failure": ("crash", how, str(draw(stream.seed - 1, stream.level)))}


def campaign(streams: list[Stream], seconds: float) -> bool:
    """Run a campaign and print its counts; tell whether no call failed."""
    start = time.monotonic()
    failures: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    while any(s.left for s in streams) and time.monotonic() - start < seconds:
        stream = min((s for s in streams if s.left), key=lambda s: s.done / s.count)
        for report in work_elsewhere(stream, seconds - (time.monotonic() - start)):
            kinds.update(report["kinds"])
            if report["failure"] is not None:
                kind, reason, description = report["failure"]
                failures[kind] += 1
                command = stream.command(stream.seed - 1, 1)
                print(f"{kind}: {reason}\n  {description}\n  {command}", flush=True)
    done = {s.gradients: s.done for s in streams}
    print(
        f"calls {done.get(False, 0)}, with gradients {done.get(True, 0)}, "
        f"crashes {failures['crash']}, errors {failures['error']}, "
        f"non-finite {failures['non-finite']}, mismatches {failures['mismatch']}, "
        f"{time.monotonic() - start:.0f} s"
    )
    print(", ".join(f"{name} {count}" for name, count in kinds.most_common()))
    for stream in streams:
        if stream.left:
            print(f"to continue: {stream.command(stream.seed, stream.left)}")
    return not failures.total()


def main() -> None:
    """Read the command line and run a campaign, or its part in this process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--gradients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--level", choices=DTYPES, help="of all calls; by default drawn")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    streams = [
        Stream(gradients, options.seed, count, options.level)
        for gradients, count in ((False, options.calls), (True, options.gradients))
        if count
    ]
    if options.worker:
        return work(streams[0], options.seconds)
    native.library()  # built before any call
    return sys.exit(0 if campaign(streams, options.seconds) else 1)


if __name__ == "__main__":
    main()
