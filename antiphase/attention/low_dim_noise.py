"""Low-dimensional noise: V1 whose noise map has queries and keys of `rank` channels instead of d.

A2 = softmax(Q2 K2^T / sqrt(r)),  r << d
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
    halve_heads,
    two_softmax_maps,
)
from antiphase.attention.projections import apply_linear, by_heads
from antiphase.ops import diff_attention


@dataclass(frozen=True)
class LowDimNoiseOptions(NoiseOptions):
    """Options of `LowDimNoise`: those of V1, and the rank.

    Args:
        rank: channels of the noise's queries and keys; even where RoPE is applied.
    """

    rank: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least_one("rank", self.rank)


class LowDimNoise(Attention):
    """V1 with a narrow noise map."""

    name = "low_dim_noise"
    Options = LowDimNoiseOptions
    tensor_parallel = by_heads("noise_q_proj", "noise_k_proj", shared=("lam", "norm"))

    def build(self) -> None:
        D, d, bias, r = self.hidden_size, self.head_dim, self.bias, self.options.rank
        self.h, self.h_kv = halve_heads(self.name, self.num_heads, self.num_kv_heads)
        self.q_proj = nn.Linear(D, self.h * d, bias)
        self.k_proj = nn.Linear(D, self.h_kv * d, bias)
        self.v_proj = nn.Linear(D, 2 * self.h_kv * d, bias)
        self.noise_q_proj = nn.Linear(D, self.h * r, bias)
        self.noise_k_proj = nn.Linear(D, self.h_kv * r, bias)
        self.lam = Lambda(d, self.layer, self.options)
        self.norm = HeadNorm(self.options.head_norm, 2 * d, 1.0 - self.lam.init, self.eps)
        self.o_proj = nn.Linear(2 * self.h * d, D, bias)

    def project(self, inputs: Inputs) -> Heads:
        x, context, d, r = inputs.x, inputs.context, self.head_dim, self.options.rank
        q = split_heads(rope(apply_linear(self.q_proj, x), d, inputs.rotary), d)  # [B, h, Tq, d]
        q2 = rope(apply_linear(self.noise_q_proj, x), r, inputs.rotary)
        q2 = split_heads(q2, r)  # [B, h, Tq, r]
        k = rope(apply_linear(self.k_proj, context), d, inputs.key_rotary).unflatten(-1, (-1, d))
        k2 = rope(apply_linear(self.noise_k_proj, context), r, inputs.key_rotary)
        k2 = k2.unflatten(-1, (-1, r))
        v = split_heads(apply_linear(self.v_proj, context), 2 * d)
        # Both keys side by side as one head, so that a static cache fits, as in V1.
        keys, v = extend_cache(inputs.cache, cat([k, k2], dim=-1).transpose(1, 2), v)
        k, k2 = keys.split([d, r], dim=-1)
        return Heads(x, q, k, v, q2, k2, lam=self.lam(x, inputs.cache))

    def attend(self, heads: Heads, masking: Masking, backend: str) -> Tensor:
        return diff_attention(*heads.diff_arguments, **masking.of_output, backend=backend)

    def output(self, o: Tensor, heads: Heads) -> Tensor:
        return apply_linear(self.o_proj, merge_heads(self.norm(o)))

    def maps(self, heads: Heads, masking: Masking) -> dict[str, Tensor]:
        return two_softmax_maps(heads, masking)

    @property
    def rotary_widths(self) -> tuple[int, ...]:
        return (self.head_dim, self.options.rank)

    @property
    def cache_elements_per_token(self) -> int:
        return self.h_kv * (3 * self.head_dim + self.options.rank)

    @property
    def head_counts(self) -> dict[str, int]:
        return {"heads": self.h, "maps": 2 * self.h, "kv_heads": self.h_kv}
