"""Control: standard attention with a sigmoid gate on each head's output (arXiv 2505.06708).

O = (sigmoid(W_g x) * softmax(Q K^T / sqrt(d)) V) W_O
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from antiphase.attention.base import Attention
from antiphase.attention.heads import Heads, Inputs, extend_cache, merge_heads, rope, split_heads
from antiphase.attention.masking import Masking
from antiphase.attention.projections import apply_linear, by_heads
from antiphase.ops import attention, attention_map


@dataclass(frozen=True)
class GatedOptions:
    """Options of `Gated`.

    Args:
        elementwise: one gate per channel of each head, instead of one per head.
    """

    elementwise: bool = False


class Gated(Attention):
    """Standard attention with heads gated per token."""

    name = "gated"
    Options = GatedOptions
    tensor_parallel = by_heads("gate_proj")

    def build(self) -> None:
        D, d, bias = self.hidden_size, self.head_dim, self.bias
        self.q_proj = nn.Linear(D, self.num_heads * d, bias)
        self.k_proj = nn.Linear(D, self.num_kv_heads * d, bias)
        self.v_proj = nn.Linear(D, self.num_kv_heads * d, bias)
        self.o_proj = nn.Linear(self.num_heads * d, D, bias)
        self.gate_width = d if self.options.elementwise else 1
        # Never a bias: with small initial weights every gate starts near 0.5.
        self.gate_proj = nn.Linear(D, self.num_heads * self.gate_width, bias=False)

    def project(self, inputs: Inputs) -> Heads:
        x, context, d = inputs.x, inputs.context, self.head_dim
        q = split_heads(rope(apply_linear(self.q_proj, x), d, inputs.rotary), d)  # [B, h, Tq, d]
        k = split_heads(rope(apply_linear(self.k_proj, context), d, inputs.key_rotary), d)
        v = split_heads(apply_linear(self.v_proj, context), d)
        k, v = extend_cache(inputs.cache, k, v)  # [B, h_kv, Tk, d]
        return Heads(x, q, k, v)

    def attend(self, heads: Heads, masking: Masking, backend: str) -> Tensor:
        return attention(heads.q, heads.k, heads.v, **masking.of_output, backend=backend)

    def output(self, o: Tensor, heads: Heads) -> Tensor:
        gate = split_heads(torch.sigmoid(apply_linear(self.gate_proj, heads.x)), self.gate_width)
        return apply_linear(self.o_proj, merge_heads(o * gate))  # gate [B, h, Tq, d | 1]

    def maps(self, heads: Heads, masking: Masking) -> dict[str, Tensor]:
        A = attention_map(heads.q, heads.k, heads.v, **masking.of_maps)
        return {"signal": A, "difference": A}
