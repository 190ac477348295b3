"""Small parts that several mechanisms have: the weight of the noise, and the norm of a head."""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from antiphase.ops import rms_norm, statistics_dtype


@dataclass(frozen=True)
class NoiseOptions:
    """How the noise is weighed and the difference normed.

    `lam`: "learned", or a number that stays. `lam_init`: "depth" for 0.8 - 0.6 exp(-0.3 layer), or
    a number. `head_norm`: "rms" (with the factor 1 - lam_init), one learned "scalar", or "none".
    """

    lam: Literal["learned"] | float = "learned"
    lam_init: Literal["depth"] | float = "depth"
    head_norm: Literal["rms", "scalar", "none"] = "rms"

    def __post_init__(self) -> None:
        _number_or("lam", self.lam, "learned")
        _number_or("lam_init", self.lam_init, "depth")
        if self.lam_init != "depth" and self.lam != "learned" and self.head_norm != "rms":
            raise ValueError(
                f"lam_init={self.lam_init} has no effect when lam is fixed at {self.lam} and "
                f"head_norm is {self.head_norm!r} (it only enters the norm's factor); leave it out"
            )
        if self.head_norm == "rms" and self.lam_init == 1:
            raise ValueError("lam_init=1 makes the norm's factor 1 - lam_init zero; choose another")


def _number_or(name: str, value: Any, word: str) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if value != word and not (number and math.isfinite(value)):
        raise ValueError(f"{name}: got {value!r}, expected {word!r} or a number")


def depth_init(layer: int) -> float:
    """Return lam_init of a layer, counted from 0."""
    return 0.8 - 0.6 * math.exp(-0.3 * layer)


class Float32Parameters(nn.Module):
    """A module whose parameters and buffers stay in fp32 when a model is cast to 16 bits.

    The gradient steps of lam, a gain or a logit are smaller than bf16 can add to them.
    """

    def _apply(self, fn: Any, recurse: bool = True) -> "Float32Parameters":
        def keep(t: Tensor) -> Tensor:
            moved = fn(t)
            narrow = moved.dtype in (torch.bfloat16, torch.float16)
            return t.to(moved.device, torch.float32) if narrow else moved

        return super()._apply(keep, recurse)  # type: ignore[no-untyped-call]

    def init_parameters(self) -> None:
        """Set the starting values."""


class Lambda(Float32Parameters):
    """lam = exp(lq1 . lk1) - exp(lq2 . lk2) + lam_init, one number a layer; or a fixed number."""

    q1: nn.Parameter
    k1: nn.Parameter
    q2: nn.Parameter
    k2: nn.Parameter

    def __init__(self, width: int, layer: int, options: NoiseOptions) -> None:
        super().__init__()
        self.init = depth_init(layer) if options.lam_init == "depth" else float(options.lam_init)
        self.fixed = None if options.lam == "learned" else float(options.lam)
        if self.fixed is None:
            for name in ("q1", "k1", "q2", "k2"):
                self.register_parameter(name, nn.Parameter(torch.empty(width, dtype=torch.float32)))
            self.init_parameters()

    def init_parameters(self) -> None:
        for vector in self.parameters(recurse=False):
            nn.init.normal_(vector, 0.0, 0.1)

    def forward(self, like: Tensor) -> Tensor:
        """Return lam, [] in fp32 (or fp64), on the device of `like`."""
        if self.fixed is not None:
            dtype = statistics_dtype(like.dtype)
            return torch.full((), self.fixed, device=like.device, dtype=dtype)
        one, two = (self.q1 * self.k1).sum().exp(), (self.q2 * self.k2).sum().exp()
        return one - two + self.init

    def extra_repr(self) -> str:
        return f"init={self.init:.3f}" if self.fixed is None else f"fixed={self.fixed}"


class HeadNorm(Float32Parameters):
    """The norm of each head's output over its channels, with one gain for all heads.

    "rms" norms and multiplies by gain and factor; "scalar" multiplies by one number; "none" does
    nothing.
    """

    def __init__(self, kind: str, width: int, factor: float, eps: float) -> None:
        super().__init__()
        self.kind, self.width, self.factor, self.eps = kind, width, factor, eps
        if kind != "none":
            size = width if kind == "rms" else 1
            self.gain = nn.Parameter(torch.empty(size, dtype=torch.float32))
            self.init_parameters()

    def init_parameters(self) -> None:
        if self.kind != "none":
            nn.init.ones_(self.gain)

    def forward(self, o: Tensor) -> Tensor:
        """Return o [..., width], normed."""
        if self.kind == "none":
            return o
        if self.kind == "scalar":
            return (o * self.gain).to(o.dtype)
        return rms_norm(o, self.gain * self.factor, self.eps)

    def extra_repr(self) -> str:
        return f"{self.kind}, width={self.width}, factor={self.factor:.3f}"
