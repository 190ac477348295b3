"""Control: softmax with a learned extra logit per head in the denominator (off-by-one softmax).

A[i, j] = exp(s_ij) / (exp(sink) + sum_j' exp(s_ij'))
"""

import torch
from torch import Tensor, nn

from antiphase.attention.base import Attention
from antiphase.attention.heads import Heads, Inputs, extend_cache, merge_heads, rope, split_heads
from antiphase.attention.masking import Masking
from antiphase.attention.parts import Float32Parameters
from antiphase.attention.projections import apply_linear
from antiphase.ops import attention, attention_map


class SinkLogits(Float32Parameters):
    """One logit per head."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.empty(heads, dtype=torch.float32))
        self.init_parameters()

    def init_parameters(self) -> None:
        nn.init.zeros_(self.logits)  # exp(0) = 1: the off-by-one softmax


class Sink(Attention):
    """Standard attention whose rows may sum to less than 1."""

    name = "sink"
    unsplit = "its logits are one parameter per head, and plans split projections only"

    def build(self) -> None:
        D, d, bias = self.hidden_size, self.head_dim, self.bias
        self.q_proj = nn.Linear(D, self.num_heads * d, bias)
        self.k_proj = nn.Linear(D, self.num_kv_heads * d, bias)
        self.v_proj = nn.Linear(D, self.num_kv_heads * d, bias)
        self.o_proj = nn.Linear(self.num_heads * d, D, bias)
        self.sink = SinkLogits(self.num_heads)

    def project(self, inputs: Inputs) -> Heads:
        x, context, d = inputs.x, inputs.context, self.head_dim
        q = split_heads(rope(apply_linear(self.q_proj, x), d, inputs.rotary), d)  # [B, h, Tq, d]
        k = split_heads(rope(apply_linear(self.k_proj, context), d, inputs.key_rotary), d)
        v = split_heads(apply_linear(self.v_proj, context), d)
        k, v = extend_cache(inputs.cache, k, v)  # [B, h_kv, Tk, d]
        return Heads(x, q, k, v)

    def attend(self, heads: Heads, masking: Masking, backend: str) -> Tensor:
        sink = self.sink.logits
        return attention(heads.q, heads.k, heads.v, sink=sink, **masking.of_output, backend=backend)

    def output(self, o: Tensor, heads: Heads) -> Tensor:
        return apply_linear(self.o_proj, merge_heads(o))

    def maps(self, heads: Heads, masking: Masking) -> dict[str, Tensor]:
        A = attention_map(heads.q, heads.k, heads.v, sink=self.sink.logits, **masking.of_maps)
        return {"signal": A, "difference": A}
