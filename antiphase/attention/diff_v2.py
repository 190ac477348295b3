"""DIFF V2 (Microsoft, January 2026).

    O = (softmax(Q1 K^T / sqrt(d)) - sigmoid(lam) softmax(Q2 K^T / sqrt(d))) V W_O

The baseline's heads stay; each has two queries and one key. The queries of a pair are adjacent, so
that both use the same key and value head (pairing by halves is a known mistake). lam is one
value per token and head, projected from the queries' input. There is no head norm. Keys, values
and the cache are the baseline's.
"""

import torch
from torch import Tensor, nn

from antiphase.attention.base import Attention
from antiphase.attention.heads import Heads, Inputs, extend_cache, merge_heads, rope, split_heads
from antiphase.attention.masking import Masking
from antiphase.attention.parts import two_softmax_maps
from antiphase.attention.projections import apply_linear, by_heads
from antiphase.ops import diff_attention, statistics_dtype


class DiffV2(Attention):
    """Differential attention with doubled queries and lam projected from the token."""

    name = "diff_v2"
    tensor_parallel = by_heads("lambda_proj")

    def build(self) -> None:
        D, d, bias = self.hidden_size, self.head_dim, self.bias
        self.q_proj = nn.Linear(D, 2 * self.num_heads * d, bias)
        self.k_proj = nn.Linear(D, self.num_kv_heads * d, bias)
        self.v_proj = nn.Linear(D, self.num_kv_heads * d, bias)
        # Never a bias: with small initial weights lam starts near sigmoid(0) = 0.5.
        self.lambda_proj = nn.Linear(D, self.num_heads, bias=False)
        self.o_proj = nn.Linear(self.num_heads * d, D, bias)

    def project(self, inputs: Inputs) -> Heads:
        x, context, d = inputs.x, inputs.context, self.head_dim
        q = split_heads(rope(apply_linear(self.q_proj, x), d, inputs.rotary), d)  # [B, 2h, Tq, d]
        k = split_heads(rope(apply_linear(self.k_proj, context), d, inputs.key_rotary), d)
        v = split_heads(apply_linear(self.v_proj, context), d)
        k, v = extend_cache(inputs.cache, k, v)  # [B, h_kv, Tk, d]
        q1, q2 = q.unflatten(1, (-1, 2)).unbind(2)
        # The sigmoid in fp32: in bf16, lam would have steps of 1/256 around 0.5.
        lam = apply_linear(self.lambda_proj, x)
        lam = torch.sigmoid(lam.to(statistics_dtype(lam.dtype)))
        return Heads(x, q1, k, v, q2, k, lam=lam.mT[..., None])  # lam [B, h, Tq, 1]

    def attend(self, heads: Heads, masking: Masking, backend: str) -> Tensor:
        return diff_attention(*heads.diff_arguments, **masking.of_output, backend=backend)

    def output(self, o: Tensor, heads: Heads) -> Tensor:
        return apply_linear(self.o_proj, merge_heads(o))

    def maps(self, heads: Heads, masking: Masking) -> dict[str, Tensor]:
        return two_softmax_maps(heads, masking)

    @property
    def head_counts(self) -> dict[str, int]:
        h = self.num_heads
        return {"heads": h, "maps": 2 * h, "kv_heads": self.num_kv_heads}

    @property
    def function_head_counts(self) -> tuple[int, int]:
        return 2 * self.num_heads, self.num_kv_heads

    def function_heads(self, heads: Heads) -> tuple[Tensor, Tensor, Tensor]:
        q1, _, q2, *_ = heads.diff_arguments
        return torch.stack([q1, q2], dim=2).flatten(1, 2), heads.k, heads.v  # adjacent pairs

    def function_output(self, o: Tensor, heads: Heads) -> Tensor:
        o1, o2 = o.unflatten(1, (-1, 2)).unbind(2)
        return (o1 - heads.lam * o2).to(o.dtype)
