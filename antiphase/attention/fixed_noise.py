"""Fixed noise: V1 whose second map does not depend on the query.

    A2[i, j] = g_j / sum_{j' <= i} g_j',  g = exp(w . x_j) a head, or g = 1: the running mean

Of rank 1 in any block of rows >= m and columns < m. O(T d).
"""

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from antiphase.attention.heads import Heads
from antiphase.attention.parts import NoiseOptions
from antiphase.attention.running_noise import RunningNoise
from antiphase.ops import prefix_attention, prefix_map, repeat_heads, statistics_dtype


@dataclass(frozen=True)
class FixedNoiseOptions(NoiseOptions):
    """`gate`: "learned" weights g = exp(w . x), or the parameter-free running "mean"."""

    gate: Literal["learned", "mean"] = "learned"


class FixedNoise(RunningNoise):
    """V1 with a noise map that is the same for every query, up to where it ends."""

    name = "fixed_noise"
    Options = FixedNoiseOptions

    def build(self) -> None:
        self.build_signal()
        if self.options.gate == "learned":
            self.gate_proj = self.linear(self.hidden_size, self.h_kv, bias=False)
        self.build_output(self.h, 2 * self.head_dim)

    def features(self, x: Tensor, context: Tensor) -> tuple[None, Tensor]:
        """Return log g [B, h_kv, Tk], one gate for each key and value head."""
        if self.options.gate == "mean":
            return None, context.new_zeros(context.shape[0], self.h_kv, context.shape[1])
        return None, self.gate_proj(context).to(statistics_dtype(context.dtype)).mT

    def noise(self, heads: Heads, **visible: Any) -> tuple[Tensor, Tensor]:
        assert heads.k2 is not None
        out, state = prefix_attention(heads.k2, heads.v_new, **visible)
        return repeat_heads(out, self.h), state

    def noise_map(self, heads: Heads, visible: Tensor | None) -> Tensor:
        assert heads.k2 is not None
        return prefix_map(heads.k2, heads.q.shape[2], visible)
