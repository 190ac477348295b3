"""Pick a backend: `auto` by device, shape and dtype, and a plain answer to what it chose and why.

A backend is a module with `forward(Arguments) -> Tensor`; a new one (Triton, say) is one file here
and one line in `BACKENDS`, and, if `auto` should ever take it, one line in `choose`.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
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
        fused = a.q1.device.type == "cpu" and not _flash_is_faster(a)
        return "fused_cpu" if fused else "sdpa"
    if backend not in BACKENDS:
        raise ValueError(f"backend: got {backend!r}, allowed are {', '.join((AUTO, *BACKENDS))}")
    if backend == "fused_cpu" and a.q1.device.type != "cpu":
        raise ValueError(
            f"backend: 'fused_cpu' needs CPU tensors, q1 is on {a.q1.device}; use 'auto' or 'sdpa'"
        )
    return backend


def _flash_is_faster(a: Arguments) -> bool:
    """Tell whether PyTorch's CPU kernel beats our Python level, which the C++ level left to serve.

    It does where all widths are equal and no head is shared out of turn (a masked DIFF V2, say):
    then nothing is padded and two calls cost no more than standard attention. Not in 16 bits, where
    it would round masks and outputs, and may need `guard_bf16` first.
    """
    if fused_cpu.uncovered(a) is None or a.sink is not None:
        return False
    if a.q1.dtype not in (torch.float32, torch.float64):
        return False
    widths = {q.shape[-1] for q, _, _ in a.pairs} | {a.v.shape[-1]}
    return len(widths) == 1 and all(q.shape[1] == a.q1.shape[1] for q, _, _ in a.pairs)


def explain(a: Arguments, backend: str = AUTO) -> Choice:
    """Return which backend and level serve these arguments, and why."""
    name = choose(a, backend)
    reason = "asked for" if backend != AUTO else f"auto takes it on {a.q1.device.type}"
    if name != "fused_cpu":
        if backend == AUTO and a.q1.device.type == "cpu":
            reason += f"; the c++ level: {fused_cpu.uncovered(a)}"
        return Choice(name, None, reason)
    level, why = fused_cpu.level(a)
    return Choice(name, level, f"{reason}; the {level} level: {why}")


def run(a: Arguments, backend: str = AUTO) -> Tensor:
    """Run a checked call on the backend of that name."""
    name = choose(a, backend)
    if a.q1.shape[0] == 0:  # an empty batch
        name = "reference"
    return BACKENDS[name].forward(a)
