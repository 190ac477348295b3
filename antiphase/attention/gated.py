"""Control: standard attention with a sigmoid gate on each head's output (arXiv 2505.06708).

O_i = sigmoid(W_g x_t) * softmax(q k^T) V
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from antiphase.attention.heads import Heads
from antiphase.attention.standard import OneMap


@dataclass(frozen=True)
class GatedOptions:
    """`elementwise`: a gate for each channel of a head, instead of one number a head."""

    elementwise: bool = False


class Gated(OneMap):
    """Standard attention whose heads the token can shut."""

    name = "gated"
    Options = GatedOptions

    def build(self) -> None:
        super().build()
        self.gate_width = self.head_dim if self.options.elementwise else 1
        gates = self.num_heads * self.gate_width
        self.gate_proj = self.linear(self.hidden_size, gates, bias=False)

    def merge(self, o: Tensor, heads: Heads) -> Tensor:
        gate = torch.sigmoid(self.gate_proj(heads.x)).unflatten(-1, (-1, self.gate_width))
        return super().merge(o * gate.transpose(1, 2), heads)  # [B, h, T, d | 1]
