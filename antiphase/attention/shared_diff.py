"""Shared DIFF (arXiv 2501.17900): DIFF V1 whose two maps share their base projections.

    Q_b = X (W_Q + A_b B_b),  K_b = X (W_K + C_b E_b),  b = 1, 2;  the rest is V1

The updates A_b B_b have a low rank, one pair for the queries and one for the keys of each map. They
start small, so that both maps start nearly equal, and the layer as standard attention with V1's
head norm. Ranks of the published code are not known.
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
class SharedDiffOptions(NoiseOptions):
    """Options of `SharedDiff`: those of V1, and the rank.

    Args:
        rank: of each update of W_Q and W_K.
    """

    rank: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least_one("rank", self.rank)


class SharedDiff(Attention):
    """V1 with one base projection for both maps and a low-rank update for each."""

    name = "shared_diff"
    Options = SharedDiffOptions
    tensor_parallel = by_heads(
        "q1_up_proj", "q2_up_proj", "k1_up_proj", "k2_up_proj", shared=("lam", "norm")
    )

    def build(self) -> None:
        D, d, bias, r = self.hidden_size, self.head_dim, self.bias, self.options.rank
        self.h, self.h_kv = halve_heads(self.name, self.num_heads, self.num_kv_heads)
        self.q_proj = nn.Linear(D, self.h * d, bias)
        self.k_proj = nn.Linear(D, self.h_kv * d, bias)
        self.v_proj = nn.Linear(D, 2 * self.h_kv * d, bias)
        # Never a bias: W_Q and W_K have it. Both maps' updates side by side: A_1 | A_2.
        self.q_down_proj = nn.Linear(D, 2 * r, bias=False)
        self.k_down_proj = nn.Linear(D, 2 * r, bias=False)
        self.q1_up_proj = nn.Linear(r, self.h * d, bias=False)
        self.q2_up_proj = nn.Linear(r, self.h * d, bias=False)
        self.k1_up_proj = nn.Linear(r, self.h_kv * d, bias=False)
        self.k2_up_proj = nn.Linear(r, self.h_kv * d, bias=False)
        self.lam = Lambda(d, self.layer, self.options)
        self.norm = HeadNorm(self.options.head_norm, 2 * d, 1.0 - self.lam.init, self.eps)
        self.o_proj = nn.Linear(2 * self.h * d, D, bias)

    def project(self, inputs: Inputs) -> Heads:
        x, context, d, r = inputs.x, inputs.context, self.head_dim, self.options.rank
        q, k = apply_linear(self.q_proj, x), apply_linear(self.k_proj, context)
        down1, down2 = apply_linear(self.q_down_proj, x).split(r, dim=-1)
        q1 = q + apply_linear(self.q1_up_proj, down1)
        q2 = q + apply_linear(self.q2_up_proj, down2)
        q1, q2 = (split_heads(rope(t, d, inputs.rotary), d) for t in (q1, q2))  # [B, h, Tq, d]
        down1, down2 = apply_linear(self.k_down_proj, context).split(r, dim=-1)
        k1 = k + apply_linear(self.k1_up_proj, down1)
        k2 = k + apply_linear(self.k2_up_proj, down2)
        k1, k2 = (split_heads(rope(t, d, inputs.key_rotary), d) for t in (k1, k2))
        v = split_heads(apply_linear(self.v_proj, context), 2 * d)
        # Both keys side by side as one head, so that a static cache fits, as in V1.
        keys, v = extend_cache(inputs.cache, cat([k1, k2], dim=-1), v)
        k1, k2 = keys.split(d, dim=-1)  # [B, h_kv, Tk, d]
        return Heads(x, q1, k1, v, q2, k2, lam=self.lam(x, inputs.cache))

    def attend(self, heads: Heads, masking: Masking, backend: str) -> Tensor:
        return diff_attention(*heads.diff_arguments, **masking.of_output, backend=backend)

    def output(self, o: Tensor, heads: Heads) -> Tensor:
        return apply_linear(self.o_proj, merge_heads(self.norm(o)))

    def maps(self, heads: Heads, masking: Masking) -> dict[str, Tensor]:
        return two_softmax_maps(heads, masking)

    @property
    def cache_elements_per_token(self) -> int:
        return 4 * self.h_kv * self.head_dim

    @property
    def head_counts(self) -> dict[str, int]:
        return {"heads": self.h, "maps": 2 * self.h, "kv_heads": self.h_kv}
