"""DIFF V1: O = (softmax(Q1 K1^T) - lam softmax(Q2 K2^T)) V, then a norm a head (arXiv 2410.05258).

A baseline of 2h heads of width d becomes h heads with two maps each and V of width 2d. The maps of
head i are the adjacent query heads 2i and 2i + 1; both read the key pair of group i // n_rep. A
pair's two keys are cached side by side as one head of width 2d, beside V's 2d.
"""

from antiphase.attention.base import remember, split_heads
from antiphase.attention.heads import Heads, Inputs
from antiphase.attention.paired import Paired, TwoMaps


class DiffV1(Paired, TwoMaps):
    """Differential attention as published: two maps of full width from paired heads."""

    name = "diff_v1"

    def build(self) -> None:
        self.pair_heads()
        d = self.head_dim
        self.q_proj = self.linear(self.hidden_size, 2 * self.h * d)
        self.k_proj = self.linear(self.hidden_size, 2 * self.h_kv * d)
        self.v_proj = self.linear(self.hidden_size, 2 * self.h_kv * d)
        self.build_output(self.h, 2 * d)

    def project(self, inputs: Inputs) -> Heads:
        x, context = inputs.x, inputs.context
        d = self.head_dim
        q = split_heads(self.q_proj(x), d, inputs.rotary).transpose(1, 2)  # [B, 2h, T, d]
        k = split_heads(self.k_proj(context), d, inputs.key_rotary).flatten(2)
        k = split_heads(k, 2 * d).transpose(1, 2)  # [B, h_kv, T, 2d]: a pair side by side
        v = split_heads(self.v_proj(context), 2 * d).transpose(1, 2)
        k, v = remember(inputs.cache, k, v)
        q1, q2 = q.unflatten(1, (self.h, 2)).unbind(2)
        k1, k2 = k.split(d, dim=-1)
        return Heads(x, q1, k1, v, q2, k2, lam=self.lam(x))

    @property
    def cache_numbers(self) -> int:
        return 4 * self.h_kv * self.head_dim

    @property
    def head_counts(self) -> dict[str, int]:
        return {"heads": self.h, "maps": 2 * self.h, "kv_heads": self.h_kv}
