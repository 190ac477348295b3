"""Grouped differential attention (arXiv 2510.06949): several signal heads share one noise map.

    O_i = norm((A1_i - lam A2_g) V_i),  g = i // ratio;  concatenated, then W_O

The baseline's heads are split into groups of `ratio` signal heads and one noise head. V has the
width D / h_signal, rounded up to a multiple of 8. At 1:1 it is DIFF V1, with identical parameters.
"""

from dataclasses import dataclass

from torch import Tensor, cat, nn

from antiphase.attention.base import Attention
from antiphase.attention.heads import Heads, Inputs, extend_cache, merge_heads, rope, split_heads
from antiphase.attention.masking import Masking
from antiphase.attention.parts import (
    HeadNorm,
    Lambda,
    NoiseOptions,
    check_at_least_one,
    two_softmax_maps,
)
from antiphase.attention.projections import apply_linear, by_heads
from antiphase.ops import diff_attention


@dataclass(frozen=True)
class GroupedOptions(NoiseOptions):
    """Options of `Grouped`: those of V1, and the ratio.

    Args:
        ratio: signal heads per noise head.
    """

    ratio: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least_one("ratio", self.ratio, " signal head per noise head")


class Grouped(Attention):
    """Differential attention with more signal heads than noise heads."""

    name = "grouped"
    Options = GroupedOptions
    tensor_parallel = by_heads(shared=("lam", "norm"))
    static_cache = False  # keys have more heads than values

    def build(self) -> None:
        D, d, bias, ratio = self.hidden_size, self.head_dim, self.bias, self.options.ratio
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
        # Kernels are fast at multiples of 8, and a width has to be an integer.
        self.value_width = width if rest == 0 else -(-group * d // (8 * ratio)) * 8
        self.q_proj = nn.Linear(D, self.num_heads * d, bias)
        self.k_proj = nn.Linear(D, self.num_kv_heads * d, bias)
        self.v_proj = nn.Linear(D, self.h_kv * self.value_width, bias)
        self.lam = Lambda(d, self.layer, self.options)
        factor = 1.0 - self.lam.init
        self.norm = HeadNorm(self.options.head_norm, self.value_width, factor, self.eps)
        self.o_proj = nn.Linear(self.h * self.value_width, D, bias)

    def project(self, inputs: Inputs) -> Heads:
        x, context, d = inputs.x, inputs.context, self.head_dim
        q = rope(apply_linear(self.q_proj, x), d, inputs.rotary)
        k = rope(apply_linear(self.k_proj, context), d, inputs.key_rotary)
        (q, q2), (k, k2) = self._signal_and_noise(q), self._signal_and_noise(k)
        v = split_heads(apply_linear(self.v_proj, context), self.value_width)
        keys, v = extend_cache(inputs.cache, cat([k, k2], dim=1), v)
        groups = keys.shape[1] // (self.options.ratio + 1)
        k, k2 = keys.split([self.options.ratio * groups, groups], dim=1)
        return Heads(x, q, k, v, q2, k2, lam=self.lam(x, inputs.cache))

    def attend(self, heads: Heads, masking: Masking, backend: str) -> Tensor:
        return diff_attention(*heads.diff_arguments, **masking.of_output, backend=backend)

    def output(self, o: Tensor, heads: Heads) -> Tensor:
        return apply_linear(self.o_proj, merge_heads(self.norm(o)))

    def maps(self, heads: Heads, masking: Masking) -> dict[str, Tensor]:
        return two_softmax_maps(heads, masking)

    def _signal_and_noise(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Split [B, T, groups * (ratio + 1) * d] into both kinds of heads, [B, heads, T, d]."""
        ratio = self.options.ratio
        by_group = t.unflatten(-1, (-1, ratio + 1, self.head_dim))
        signal, noise = by_group.split([ratio, 1], dim=3)
        return signal.flatten(2, 3).transpose(1, 2), noise.flatten(2, 3).transpose(1, 2)

    @property
    def cache_elements_per_token(self) -> int:
        return self.num_kv_heads * self.head_dim + self.h_kv * self.value_width

    @property
    def head_counts(self) -> dict[str, int]:
        return {"heads": self.h, "maps": self.num_heads, "kv_heads": self.h_kv}
