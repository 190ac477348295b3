"""What passes between the steps of a mechanism: tensors by head, and the cache they come from."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

Rotary = dict[int, tuple[Tensor, Tensor]]
"""cos and sin, each [B | 1, T, width], by the width of the heads that they turn."""


class Cache(Protocol):
    """One layer's memory of earlier tokens."""

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add keys and values [B, heads, T, width]; return all there are now."""

    def state(self) -> Tensor | None:
        """Return the running state stored last, None at the start."""

    def store(self, state: Tensor) -> None:
        """Keep a running state of constant size."""


@dataclass
class Inputs:
    """What a layer is given: who asks, what there is to find, positions and the past."""

    x: Tensor  # [B, Tq, D]
    context: Tensor  # [B, Tk, D]: x itself, or another text
    rotary: Rotary  # of the queries
    key_rotary: Rotary
    cache: Cache | None


@dataclass
class Heads:
    """Queries, keys and values by head. `q2`, `k2` belong to the noise, `lam` weighs it."""

    x: Tensor  # [B, Tq, D], the tokens that ask
    q: Tensor  # [B, h, Tq, d]
    k: Tensor  # [B, h_kv, Tk, d]
    v: Tensor  # [B, h_kv, Tk, dv]
    q2: Tensor | None = None  # [B, h_n, Tq, d2]
    k2: Tensor | None = None  # [B, h_kv_n, Tk, d2]
    lam: Tensor | None = None  # broadcasts to [B, h, Tq, 1]
    new: int = 0  # how many of the Tk keys are new in this call
    cache: Cache | None = None

    @property
    def v_new(self) -> Tensor:
        """Return the values that this call brought."""
        return self.v[:, :, self.v.shape[2] - self.new :]
