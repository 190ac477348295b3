"""Parts that several mechanisms share: lam, the head norm, and what follows from two maps."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from antiphase.attention.heads import Cache, Heads
from antiphase.attention.masking import Masking
from antiphase.ops import attention_maps, rms_norm, statistics_dtype


@dataclass(frozen=True)
class NoiseOptions:
    """How V1 and its variants scale the noise and normalise the difference.

    Args:
        lam: "learned", or a constant.
        lam_init: "depth" for 0.8 - 0.6 exp(-0.3 layer), or a constant.
        head_norm: "rms" (with the factor 1 - lam_init), one learned "scalar", or "none".
    """

    lam: Literal["learned"] | float = "learned"
    lam_init: Literal["depth"] | float = "depth"
    head_norm: Literal["rms", "scalar", "none"] = "rms"

    def __post_init__(self) -> None:
        _check_number_or("lam", self.lam, "learned")
        _check_number_or("lam_init", self.lam_init, "depth")
        if self.lam_init != "depth" and self.lam != "learned" and self.head_norm != "rms":
            raise ValueError(
                f"lam_init={self.lam_init} has no effect when lam is fixed at {self.lam} and "
                f"head_norm is {self.head_norm!r} (it only enters the norm's factor); leave it out"
            )
        if self.head_norm == "rms" and self.lam_init == 1:
            raise ValueError("lam_init=1 makes the norm's factor 1 - lam_init zero; choose another")


def _check_number_or(name: str, value: Any, word: str) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if value != word and not (number and math.isfinite(value)):
        raise ValueError(f"{name}: got {value!r}, expected {word!r} or a number")


def depth_init(layer: int) -> float:
    """Return lam_init of a layer, counted from 0: 0.2 for the first, towards 0.8 with depth."""
    return 0.8 - 0.6 * math.exp(-0.3 * layer)


class Float32Parameters(nn.Module, ABC):
    """A module whose parameters and buffers stay in fp32 when a model is cast to 16 bits.

    The gradient steps of lam, a gain or a logit are smaller than bf16 can add to them.
    """

    def _apply(self, fn: Any, recurse: bool = True) -> "Float32Parameters":
        def keep(t: Tensor) -> Tensor:
            moved = fn(t)
            narrow = moved.dtype in (torch.bfloat16, torch.float16)
            return t.to(moved.device, torch.float32) if narrow else moved

        return super()._apply(keep, recurse)  # type: ignore[no-untyped-call]

    @abstractmethod
    def init_parameters(self) -> None:
        """Set the initial values.

        Models call it again for parameters that a checkpoint does not have: these were created on
        `meta`, without values.
        """


@dataclass(frozen=True)
class LambdaOptions:
    """How a mechanism that never has a head norm scales its noise.

    Args:
        lam: "learned", or a constant.
        lam_init: "depth" for 0.8 - 0.6 exp(-0.3 layer), or a constant.
    """

    lam: Literal["learned"] | float = "learned"
    lam_init: Literal["depth"] | float = "depth"

    def __post_init__(self) -> None:
        _check_number_or("lam", self.lam, "learned")
        _check_number_or("lam_init", self.lam_init, "depth")
        if self.lam_init != "depth" and self.lam != "learned":
            raise ValueError(
                f"lam_init={self.lam_init} has no effect when lam is fixed at {self.lam}; "
                "leave it out"
            )


class Lambda(Float32Parameters):
    """lam = exp(lq1 . lk1) - exp(lq2 . lk2) + lam_init, one value per layer; or a constant.

    Args:
        width: of the four vectors; the paper's is the head width d.
        layer: counted from 0, for `lam_init="depth"`.
        options: `lam` and `lam_init`.
    """

    q1: nn.Parameter
    k1: nn.Parameter
    q2: nn.Parameter
    k2: nn.Parameter

    def __init__(self, width: int, layer: int, options: NoiseOptions | LambdaOptions) -> None:
        super().__init__()
        self.init = depth_init(layer) if options.lam_init == "depth" else float(options.lam_init)
        self.fixed = None if options.lam == "learned" else float(options.lam)
        if self.fixed is None:
            for name in ("q1", "k1", "q2", "k2"):
                self.register_parameter(name, nn.Parameter(torch.empty(width, dtype=torch.float32)))
            self.init_parameters()

    def init_parameters(self) -> None:
        # N(0, 0.1) as published: both exponentials start near 1, so lam starts near lam_init, and
        # every vector has a gradient, which it would not have at zero.
        for vector in self.parameters(recurse=False):
            nn.init.normal_(vector, 0.0, 0.1)

    def forward(self, like: Tensor, cache: Cache | None = None) -> Tensor:
        """Return lam, a scalar.

        A learned lam has the dtype and device of its vectors. A constant has the device of `like`,
        and fp32 (fp64 if `like` has it).

        Args:
            like: of the layer's call.
            cache: of the layer, if any: it keeps lam for the next tokens of a sequence.
        """
        return self._value(like) if cache is None else cache.constant(lambda: self._value(like))

    def _value(self, like: Tensor) -> Tensor:
        if self.fixed is not None:
            dtype = statistics_dtype(like.dtype)
            return torch.full((), self.fixed, device=like.device, dtype=dtype)
        first, second = (self.q1 * self.k1).sum().exp(), (self.q2 * self.k2).sum().exp()
        return first - second + self.init

    def extra_repr(self) -> str:
        return f"init={self.init:.3f}" if self.fixed is None else f"fixed={self.fixed}"


class HeadNorm(Float32Parameters):
    """The norm of each head's output over its channels, with one gain shared by the heads.

    Args:
        kind: "rms" normalises and multiplies by gain and factor; "scalar" multiplies by one learned
            value; "none" does nothing.
        width: channels per head.
        factor: of "rms". V1 takes 1 - lam_init, so that gradients flow as in standard attention
            (arXiv 2410.05258). It belongs to the norm: the other kinds have no factor.
        eps: added to the mean square.
        live: fraction of rows that are not zero at the start. The scaled start makes these larger,
            so that all rows together have the RMS of other mechanisms.
    """

    def __init__(self, kind: str, width: int, factor: float, eps: float, live: float = 1.0) -> None:
        super().__init__()
        self.kind, self.width, self.factor, self.eps, self.live = kind, width, factor, eps, live
        if kind != "none":
            size = width if kind == "rms" else 1
            self.gain = nn.Parameter(torch.empty(size, dtype=torch.float32))
            self.init_parameters()

    def init_parameters(self) -> None:
        if self.kind != "none":
            nn.init.ones_(self.gain)

    def forward(self, o: Tensor) -> Tensor:
        """Return o [..., width], normalised."""
        if self.kind == "none":
            return o
        if self.kind == "scalar":
            return (o * self.gain).to(o.dtype)
        return rms_norm(o, self.gain * self.factor, self.eps)

    def extra_repr(self) -> str:
        return f"{self.kind}, width={self.width}, factor={self.factor:.3f}"


def halve_heads(name: str, num_heads: int, num_kv_heads: int) -> tuple[int, int]:
    """Return the head counts of a mechanism that pairs the baseline's heads.

    Args:
        name: of the mechanism, for the error.
        num_heads: of the baseline.
        num_kv_heads: of the baseline.

    Returns:
        (h, h_kv), half of each.

    Raises:
        ValueError: a number of heads is odd.
    """
    for what, n in {"num_heads": num_heads, "num_kv_heads": num_kv_heads}.items():
        if n % 2:
            raise ValueError(
                f"{what}: {name} pairs the baseline's heads, and {n} cannot be halved; "
                "use an even number"
            )
    return num_heads // 2, num_kv_heads // 2


def two_softmax_maps(heads: Heads, masking: Masking) -> dict[str, Tensor]:
    """Return signal, noise, lam and difference of a layer with two softmax maps per head."""
    A1, A2, difference = attention_maps(*heads.diff_arguments, **masking.of_maps)
    return {"signal": A1, "noise": A2, "lam": per_row(heads.lam, A1), "difference": difference}


def per_row(lam: Tensor | None, A: Tensor) -> Tensor:
    """Return lam expanded to one value per row of a map A [B, h, Tq, Tk]: [B, h, Tq, 1]."""
    assert lam is not None
    return lam.expand(*A.shape[:3], 1)


def check_at_least_one(name: str, value: int, what: str = "") -> None:
    """Raise for a count below 1; `what` says what is counted."""
    if value < 1:
        raise ValueError(f"{name}: got {value}, expected at least 1{what}")


# Not PyTorch's own functions: torch.compile (2.13) assumes that their gradients have the strides of
# x, while they have those of the gradient that comes in, so that compiled backward passes fail.


def softplus(x: Tensor) -> Tensor:
    """Return log(1 + exp(x))."""
    return torch.logaddexp(x, x.new_zeros(()))


def elu_plus_one(x: Tensor) -> Tensor:
    """Return exp(x) below 0, and x + 1 above."""
    return torch.where(x > 0, x + 1, x.clamp(max=0).exp())
