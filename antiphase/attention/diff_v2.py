"""DIFF V2: O = (softmax(Q1 K^T) - sigmoid(lam) softmax(Q2 K^T)) V (Microsoft, January 2026).

The baseline's heads stay; each has two queries, adjacent, so that both read the same key and value
head. lam is a number for each token and head, from the same input as the queries. No head norm.
Keys and values, and so the cache, are the baseline's.
"""

import torch

from antiphase.attention.base import remember, split_heads
from antiphase.attention.heads import Heads, Inputs
from antiphase.attention.paired import TwoMaps
from antiphase.ops import statistics_dtype


class DiffV2(TwoMaps):
    """Differential attention with doubled queries and a lam from the token."""

    name = "diff_v2"

    def build(self) -> None:
        d, h, h_kv = self.head_dim, self.num_heads, self.num_kv_heads
        self.q_proj = self.linear(self.hidden_size, 2 * h * d)
        self.k_proj = self.linear(self.hidden_size, h_kv * d)
        self.v_proj = self.linear(self.hidden_size, h_kv * d)
        self.lambda_proj = self.linear(self.hidden_size, h, bias=False)
        self.o_proj = self.linear(h * d, self.hidden_size)

    def project(self, inputs: Inputs) -> Heads:
        x, context = inputs.x, inputs.context
        d = self.head_dim
        q = split_heads(self.q_proj(x), d, inputs.rotary).transpose(1, 2)  # [B, 2h, T, d]
        k = split_heads(self.k_proj(context), d, inputs.key_rotary).transpose(1, 2)
        v = split_heads(self.v_proj(context), d).transpose(1, 2)
        k, v = remember(inputs.cache, k, v)
        q1, q2 = q.unflatten(1, (self.num_heads, 2)).unbind(2)
        lam = self.lambda_proj(x).to(statistics_dtype(x.dtype))
        lam = torch.sigmoid(lam).mT[..., None]  # [B, h, T, 1]
        return Heads(x, q1, k, v, q2, k, lam=lam)

    @property
    def cache_numbers(self) -> int:
        return 2 * self.num_kv_heads * self.head_dim

    @property
    def head_counts(self) -> dict[str, int]:
        h = self.num_heads
        return {"heads": h, "maps": 2 * h, "kv_heads": self.num_kv_heads}
