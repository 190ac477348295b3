"""Divergence: losses that are not finite and gradient spikes, by step, examples and layer."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


@dataclass
class DivergenceError(Exception):
    """A loss that is not finite, or a spike of the gradient norm."""

    what: str
    step: int
    layer: str
    examples: range

    def __str__(self) -> str:
        first, last = self.examples.start, self.examples.stop - 1
        return (
            f"step {self.step}: {self.what}, first in {self.layer}, on examples {first} to {last}; "
            "lower lr, raise warmup, or set on_divergence=skip"
        )


class SpikeDetector:
    """The running mean of the gradient norm, and norms that are far above it.

    Args:
        threshold: a norm above this many times the running mean is a spike; None: nothing is.
    """

    def __init__(self, threshold: float | None) -> None:
        self.threshold = threshold
        self.mean: float | None = None

    def check(self, norm: float) -> str | None:
        """Return a description of a spike; a norm that is none updates the mean."""
        if self.threshold is None:
            return None
        if self.mean is not None and norm > self.threshold * self.mean:
            return (
                f"the gradient's norm {norm:.3g} is {norm / self.mean:.1f} times its running mean"
            )
        self.mean = norm if self.mean is None else 0.95 * self.mean + 0.05 * norm
        return None


def first_layer_not_finite(model: nn.Module, inputs: dict[str, Tensor]) -> str:
    """Return the first module whose output is not finite, or the first such parameter."""
    for name, parameter in model.named_parameters():
        if not torch.isfinite(parameter).all():
            return f"{name} (a parameter)"
    found: list[str] = []

    def record(name: str) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            first = output[0] if isinstance(output, tuple) else output
            if isinstance(first, Tensor) and not torch.isfinite(first).all():
                found.append(name)

        return hook

    hooks = [m.register_forward_hook(record(n)) for n, m in model.named_modules() if n]
    try:
        with torch.no_grad():
            model(**inputs, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return found[0] if found else "the loss"


def largest_gradient(model: nn.Module) -> str:
    """Return the parameter with the largest gradient norm, or the first that is not finite."""
    norms = {
        name: float(norm.full_tensor() if isinstance(norm := p.grad.norm(), DTensor) else norm)
        for name, p in model.named_parameters()
        if p.grad is not None
    }
    broken = [name for name, norm in norms.items() if not math.isfinite(norm)]
    return broken[0] if broken else max(norms, key=lambda name: norms[name])
