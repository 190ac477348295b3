"""Control: DIFF V1 whose map is put back on the simplex; sparse, but neither signed nor unbounded.

    O = (P V) W_O,  P = max(A, 0) / sum_j max(A, 0),  A = A1 - lam A2

Each row of P sums to 1, or is zero where A has no positive weight. Projections and lam are V1's.
There is no head norm, as in `rectified`. The map is materialised: memory grows with T^2.
"""

from torch import Tensor, nn

from antiphase.attention.base import Attention
from antiphase.attention.heads import Heads, Inputs, extend_cache, merge_heads, rope, split_heads
from antiphase.attention.masking import Masking
from antiphase.attention.parts import Lambda, LambdaOptions, halve_heads, two_softmax_maps
from antiphase.attention.projections import apply_linear, by_heads
from antiphase.ops import rectified_attention, rectify


class Simplex(Attention):
    """Differential attention with non-negative weights that sum to 1 per row."""

    name = "simplex"
    Options = LambdaOptions
    tensor_parallel = by_heads(shared=("lam",))

    def build(self) -> None:
        D, d, bias = self.hidden_size, self.head_dim, self.bias
        self.h, self.h_kv = halve_heads(self.name, self.num_heads, self.num_kv_heads)
        self.q_proj = nn.Linear(D, 2 * self.h * d, bias)
        self.k_proj = nn.Linear(D, 2 * self.h_kv * d, bias)
        self.v_proj = nn.Linear(D, 2 * self.h_kv * d, bias)
        self.lam = Lambda(d, self.layer, self.options)
        self.o_proj = nn.Linear(2 * self.h * d, D, bias)

    def project(self, inputs: Inputs) -> Heads:
        x, context, d = inputs.x, inputs.context, self.head_dim
        q = split_heads(rope(apply_linear(self.q_proj, x), d, inputs.rotary), d)  # [B, 2h, Tq, d]
        # A pair's two keys side by side as one head, so that a static cache fits, as in V1.
        k = split_heads(rope(apply_linear(self.k_proj, context), d, inputs.key_rotary), 2 * d)
        v = split_heads(apply_linear(self.v_proj, context), 2 * d)
        k, v = extend_cache(inputs.cache, k, v)  # [B, h_kv, Tk, 2d]
        q1, q2 = q.unflatten(1, (-1, 2)).unbind(2)
        k1, k2 = k.split(d, dim=-1)
        return Heads(x, q1, k1, v, q2, k2, lam=self.lam(x, inputs.cache))

    def attend(self, heads: Heads, masking: Masking, backend: str) -> Tensor:
        return rectified_attention(*heads.diff_arguments, normalise=True, **masking.of_output)

    def output(self, o: Tensor, heads: Heads) -> Tensor:
        return apply_linear(self.o_proj, merge_heads(o))

    def maps(self, heads: Heads, masking: Masking) -> dict[str, Tensor]:
        maps = two_softmax_maps(heads, masking)
        return {**maps, "difference": self.applied_map(maps)}

    def applied_map(self, maps: dict[str, Tensor]) -> Tensor:
        return rectify(super().applied_map(maps), normalise=True)

    @property
    def cache_elements_per_token(self) -> int:
        return 4 * self.h_kv * self.head_dim

    @property
    def head_counts(self) -> dict[str, int]:
        return {"heads": self.h, "maps": 2 * self.h, "kv_heads": self.h_kv}
