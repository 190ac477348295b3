"""Low-dim noise: V1 whose second map has queries and keys of `rank` channels instead of d.

A2 = softmax(Q2 K2^T / sqrt(r)),  r << d
"""

from dataclasses import dataclass

from torch import cat

from antiphase.attention.base import remember, split_heads
from antiphase.attention.heads import Heads, Inputs
from antiphase.attention.paired import Paired, TwoMaps
from antiphase.attention.parts import NoiseOptions


@dataclass(frozen=True)
class RankOptions(NoiseOptions):
    """`rank` channels (or features) for the noise; the rest as in V1."""

    rank: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rank < 1:
            raise ValueError(f"rank: got {self.rank}, expected at least 1")


class LowDimNoise(Paired, TwoMaps):
    """V1 with a narrow second map."""

    name = "low_dim_noise"
    Options = RankOptions

    def build(self) -> None:
        r = self.options.rank
        self.build_signal()
        self.noise_q_proj = self.linear(self.hidden_size, self.h * r)
        self.noise_k_proj = self.linear(self.hidden_size, self.h_kv * r)
        self.build_output(self.h, 2 * self.head_dim)

    def project(self, inputs: Inputs) -> Heads:
        x, context = inputs.x, inputs.context
        d, r = self.head_dim, self.options.rank
        q = split_heads(self.q_proj(x), d, inputs.rotary).transpose(1, 2)
        q2 = split_heads(self.noise_q_proj(x), r, inputs.rotary).transpose(1, 2)
        k = split_heads(self.k_proj(context), d, inputs.key_rotary)
        k2 = split_heads(self.noise_k_proj(context), r, inputs.key_rotary)
        v = split_heads(self.v_proj(context), 2 * d).transpose(1, 2)
        both, v = remember(inputs.cache, cat([k, k2], dim=-1).transpose(1, 2), v)
        k, k2 = both.split([d, r], dim=-1)
        return Heads(x, q, k, v, q2, k2, lam=self.lam(x))

    @property
    def rotary_widths(self) -> tuple[int, ...]:
        return (self.head_dim, self.options.rank)

    @property
    def cache_numbers(self) -> int:
        return self.h_kv * (3 * self.head_dim + self.options.rank)

    @property
    def head_counts(self) -> dict[str, int]:
        return {"heads": self.h, "maps": 2 * self.h, "kv_heads": self.h_kv}
