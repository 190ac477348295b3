"""Choose a backend for a call: `auto` decides by device, shape and dtype, and can say why.

A backend is a module with `forward(Arguments) -> Tensor`. To add one, write one file beside this
one and add it to `BACKENDS`; if `auto` should use it, add a line to `choose`.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from antiphase.ops import fused_cpu, reference, sdpa, triton
from antiphase.ops.arguments import Arguments, without_autocast
from antiphase.ops.fused_cpu.eager import is_exporting, transforms_active


class Backend(Protocol):
    """What a backend module provides."""

    def forward(self, args: Arguments) -> Tensor:
        """Return the output [B, H, Tq, dv]."""
        ...


BACKENDS: dict[str, Backend] = {
    "reference": reference,
    "sdpa": sdpa,
    "fused_cpu": fused_cpu,
    "triton": triton,
}
AUTO = "auto"


@dataclass(frozen=True)
class Choice:
    """What runs a call: the backend, its level where it has several, and the reason."""

    backend: str
    level: str | None
    reason: str

    def __str__(self) -> str:
        name = self.backend if self.level is None else f"{self.backend} ({self.level})"
        return f"{name}: {self.reason}"


def choose(args: Arguments, backend: str = AUTO) -> str:
    """Return the name of the backend that runs these arguments; raise if it cannot."""
    cpu = args.q1.device.type == "cpu"
    if backend not in (AUTO, *BACKENDS):
        raise ValueError(f"backend: got {backend!r}, allowed are {', '.join((AUTO, *BACKENDS))}")
    if backend == "fused_cpu" and not cpu:
        raise ValueError(
            f"backend: 'fused_cpu' needs CPU tensors, q1 is on {args.q1.device}; "
            "use 'auto' or 'sdpa'"
        )
    if backend in ("fused_cpu", "triton") and transforms_active():
        raise ValueError(
            f"backend: {backend!r} supports neither forward-mode AD nor the transforms of "
            "torch.func (grad, vjp, jvp, vmap, jacrev); use 'auto' or 'reference'"
        )
    if backend == "triton" and (reason := triton.uncovered(args)) is not None:
        raise ValueError(f"backend: 'triton' cannot run this call: {reason}; use 'auto'")
    if backend != AUTO:
        return backend
    if transforms_active():
        return "reference"
    if cpu and not is_exporting():
        return "fused_cpu"
    if _why_not_triton(args) is None:
        return "triton"
    # SDPA has neither dropout with one mask for both maps nor a soft-cap.
    return "reference" if args.dropout or args.softcap else "sdpa"


def _why_not_triton(args: Arguments) -> str | None:
    """Say why `auto` does not choose Triton; None if it does, which is on a GPU only."""
    if args.q1.device.type != "cuda":
        return f"q1 is on {args.q1.device.type}"
    if is_exporting():
        return "a program is exported"
    if sdpa.is_one_flash_call(args):
        return "both maps are one call of a flash kernel"
    return triton.why_not(args)


def explain(args: Arguments, backend: str = AUTO) -> Choice:
    """Return which backend and level run these arguments, and why."""
    name = choose(args, backend)
    where = "while exporting" if is_exporting() else f"on {args.q1.device.type}"
    reason = "requested" if backend != AUTO else f"auto chooses it {where}"
    if args.q1.device.type == "cuda" and backend == AUTO and name != "triton":
        reason += f"; not triton, because {_why_not_triton(args)}"
    if name != "fused_cpu":
        return Choice(name, None, reason)
    level, why = fused_cpu.choose_level(args)
    return Choice(name, level, f"{reason}; {level} level: {why}")


def run(args: Arguments, backend: str = AUTO) -> Tensor:
    """Run a validated call on the backend of that name, in the dtype of its tensors."""
    name = choose(args, backend)
    if args.q1.shape[0] == 0:  # an empty batch
        name = "reference"
    with without_autocast(args.q1.device):
        return BACKENDS[name].forward(args)
