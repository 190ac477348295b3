"""Control: softmax with a learned extra logit a head in the denominator (off-by-one softmax).

A[i, j] = exp(s_ij) / (exp(sink) + sum_j' exp(s_ij'))
"""

from typing import Any

import torch
from torch import nn

from antiphase.attention.heads import Heads
from antiphase.attention.parts import Float32Parameters
from antiphase.attention.standard import OneMap


class SinkLogits(Float32Parameters):
    """One logit a head. It starts at 0, the off-by-one softmax."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.empty(heads, dtype=torch.float32))
        self.init_parameters()

    def init_parameters(self) -> None:
        nn.init.zeros_(self.logits)


class Sink(OneMap):
    """Standard attention that may look nowhere."""

    name = "sink"

    def build(self) -> None:
        super().build()
        self.sink = SinkLogits(self.num_heads)

    def extras(self, heads: Heads) -> dict[str, Any]:
        return {"sink": self.sink.logits}
