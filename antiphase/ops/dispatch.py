"""Pick a backend: `auto` by device, and a plain answer to what it chose and why.

A backend is a module with `forward(Arguments) -> Tensor`; a new one (Triton, say) is one file here
and one line in `BACKENDS`, and, if `auto` should ever take it, one line in `choose`.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from antiphase.ops import fused_cpu, reference, sdpa
from antiphase.ops.arguments import Arguments


class Backend(Protocol):
    """What a backend module offers."""

    def forward(self, a: Arguments) -> Tensor: ...


BACKENDS: dict[str, Backend] = {"reference": reference, "sdpa": sdpa, "fused_cpu": fused_cpu}
AUTO = "auto"


@dataclass(frozen=True)
class Choice:
    """What serves a call: the backend, its level where it has several, and the reason."""

    backend: str
    level: str | None
    reason: str

    def __str__(self) -> str:
        name = self.backend if self.level is None else f"{self.backend} ({self.level})"
        return f"{name}: {self.reason}"


def choose(a: Arguments, backend: str = AUTO) -> str:
    """Return the name of the backend that serves these arguments; refuse one that cannot."""
    if backend == AUTO:
        return "fused_cpu" if a.q1.device.type == "cpu" else "sdpa"
    if backend not in BACKENDS:
        raise ValueError(f"backend: got {backend!r}, allowed are {', '.join((AUTO, *BACKENDS))}")
    if backend == "fused_cpu" and a.q1.device.type != "cpu":
        raise ValueError(
            f"backend: 'fused_cpu' needs CPU tensors, q1 is on {a.q1.device}; use 'auto' or 'sdpa'"
        )
    return backend


def explain(a: Arguments, backend: str = AUTO) -> Choice:
    """Return which backend and level serve these arguments, and why."""
    name = choose(a, backend)
    reason = "asked for" if backend != AUTO else f"auto takes it on {a.q1.device.type}"
    if name != "fused_cpu":
        return Choice(name, None, reason)
    level, why = fused_cpu.level(a)
    return Choice(name, level, f"{reason}; the {level} level: {why}")


def run(a: Arguments, backend: str = AUTO) -> Tensor:
    """Run a checked call on the backend of that name."""
    name = choose(a, backend)
    if a.q1.numel() == 0:  # an empty batch
        return a.v.new_zeros(*a.q1.shape[:3], a.v.shape[-1])
    return BACKENDS[name].forward(a)
