"""Low-rank noise: V1 whose second map is causal linear attention with `rank` positive features.

    A2[i, j] = phi(q2_i) . phi(k2_j) / sum_{j' <= i} phi(q2_i) . phi(k2_j'),  phi = softplus

Rank <= r before the mask, and in any block of rows >= m and columns < m. No RoPE on it. O(T r d).
"""

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from antiphase.attention.base import split_heads
from antiphase.attention.heads import Heads
from antiphase.attention.low_dim_noise import RankOptions
from antiphase.attention.running_noise import RunningNoise
from antiphase.ops import linear_attention, linear_map


class LowRankNoise(RunningNoise):
    """V1 with a noise map of low rank, by features."""

    name = "low_rank_noise"
    Options = RankOptions

    def build(self) -> None:
        self.build_signal()
        self.noise_q_proj = self.linear(self.hidden_size, self.h * self.options.rank)
        self.noise_k_proj = self.linear(self.hidden_size, self.h_kv * self.options.rank)
        self.build_output(self.h, 2 * self.head_dim)

    def features(self, x: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        """Return phi(q2) [B, h, Tq, r] and phi(k2) [B, h_kv, Tk, r]."""
        both = (self.noise_q_proj(x), self.noise_k_proj(context))
        q2, k2 = (F.softplus(split_heads(t, self.options.rank)).transpose(1, 2) for t in both)
        return q2, k2

    def noise(self, heads: Heads, **visible: Any) -> tuple[Tensor, Tensor]:
        assert heads.q2 is not None
        assert heads.k2 is not None
        return linear_attention(heads.q2, heads.k2, heads.v_new, **visible)

    def noise_map(self, heads: Heads, visible: Tensor | None) -> Tensor:
        assert heads.q2 is not None
        assert heads.k2 is not None
        return linear_map(heads.q2, heads.k2, visible)
