"""Grouped differential attention: several signal heads share one noise map (arXiv 2510.06949).

    O_i = (A1_i - lam A2_g) V_i,  g = i // ratio

The baseline's heads are split into groups of `ratio` signal heads and one noise head; V has the
width D / h_signal, rounded up to a multiple of 8. At 1:1 it is DIFF V1, weight by weight.
"""

from dataclasses import dataclass

from torch import Tensor, cat

from antiphase.attention.base import remember, split_heads
from antiphase.attention.heads import Heads, Inputs
from antiphase.attention.paired import Paired, TwoMaps
from antiphase.attention.parts import NoiseOptions


@dataclass(frozen=True)
class GroupedOptions(NoiseOptions):
    """`ratio` signal heads for each noise head; the rest as in V1."""

    ratio: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ratio < 1:
            raise ValueError(
                f"ratio: got {self.ratio}, expected at least 1 signal head a noise head"
            )


class Grouped(Paired, TwoMaps):
    """Differential attention with more signal heads than noise heads."""

    name = "grouped"
    Options = GroupedOptions
    static_cache = False  # keys have more heads than values

    def build(self) -> None:
        ratio, d = self.options.ratio, self.head_dim
        group = ratio + 1
        for what, n in {"num_heads": self.num_heads, "num_kv_heads": self.num_kv_heads}.items():
            if n % group:
                raise ValueError(
                    f"{what}: grouped at ratio {ratio} splits the baseline's heads into groups of "
                    f"{group}, and {n} cannot be split so; use a multiple of {group}, or another "
                    "ratio"
                )
        self.h_n, self.h_kv_n = self.num_heads // group, self.num_kv_heads // group
        self.h, self.h_kv = ratio * self.h_n, ratio * self.h_kv_n
        width, rest = divmod(group * d, ratio)
        self.value_width = width if rest == 0 else -(-group * d // (8 * ratio)) * 8
        self.q_proj = self.linear(self.hidden_size, self.num_heads * d)
        self.k_proj = self.linear(self.hidden_size, self.num_kv_heads * d)
        self.v_proj = self.linear(self.hidden_size, self.h_kv * self.value_width)
        self.build_output(self.h, self.value_width)

    def project(self, inputs: Inputs) -> Heads:
        x, context = inputs.x, inputs.context
        d = self.head_dim
        q, q2 = self._by_kind(split_heads(self.q_proj(x), d, inputs.rotary))
        k, k2 = self._by_kind(split_heads(self.k_proj(context), d, inputs.key_rotary))
        v = split_heads(self.v_proj(context), self.value_width).transpose(1, 2)
        both, v = remember(inputs.cache, cat([k, k2], dim=1), v)
        k, k2 = both.split([self.h_kv, self.h_kv_n], dim=1)
        return Heads(x, q, k, v, q2, k2, lam=self.lam(x))

    def _by_kind(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return signal and noise heads [B, heads, T, d] of [B, T, groups * (ratio + 1), d]."""
        ratio = self.options.ratio
        signal, noise = t.unflatten(2, (-1, ratio + 1)).split([ratio, 1], dim=3)
        return signal.flatten(2, 3).transpose(1, 2), noise.flatten(2, 3).transpose(1, 2)

    @property
    def cache_numbers(self) -> int:
        return self.num_kv_heads * self.head_dim + self.h_kv * self.value_width

    @property
    def head_counts(self) -> dict[str, int]:
        return {"heads": self.h, "maps": self.num_heads, "kv_heads": self.h_kv}
