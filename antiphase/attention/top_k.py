"""Control: standard attention over the k largest scores of each row; sparse, without subtraction.

A = softmax over { j : s_ij is among the k largest of row i }
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from antiphase.attention.base import Attention
from antiphase.attention.heads import Heads, Inputs, extend_cache, merge_heads, rope, split_heads
from antiphase.attention.masking import Masking
from antiphase.attention.parts import check_at_least_one
from antiphase.attention.projections import apply_linear, by_heads
from antiphase.ops import (
    attention,
    attention_map,
    repeat_heads,
    statistics_dtype,
    without_autocast,
)


@dataclass(frozen=True)
class TopKOptions:
    """Options of `TopK`.

    Args:
        k: keys that each query attends to; scores equal to the k-th all stay.
    """

    k: int = 32

    def __post_init__(self) -> None:
        check_at_least_one("k", self.k, " key per query")


class TopK(Attention):
    """Softmax over the k largest scores of each row. Memory grows with T^2."""

    name = "top_k"
    Options = TopKOptions
    tensor_parallel = by_heads()

    def build(self) -> None:
        D, d, bias = self.hidden_size, self.head_dim, self.bias
        self.q_proj = nn.Linear(D, self.num_heads * d, bias)
        self.k_proj = nn.Linear(D, self.num_kv_heads * d, bias)
        self.v_proj = nn.Linear(D, self.num_kv_heads * d, bias)
        self.o_proj = nn.Linear(self.num_heads * d, D, bias)

    def project(self, inputs: Inputs) -> Heads:
        x, context, d = inputs.x, inputs.context, self.head_dim
        q = split_heads(rope(apply_linear(self.q_proj, x), d, inputs.rotary), d)  # [B, h, Tq, d]
        k = split_heads(rope(apply_linear(self.k_proj, context), d, inputs.key_rotary), d)
        v = split_heads(apply_linear(self.v_proj, context), d)
        k, v = extend_cache(inputs.cache, k, v)  # [B, h_kv, Tk, d]
        return Heads(x, q, k, v)

    def attend(self, heads: Heads, masking: Masking, backend: str) -> Tensor:
        masking = self._only_largest(heads, masking)
        return attention(heads.q, heads.k, heads.v, **masking.of_output, backend=backend)

    def output(self, o: Tensor, heads: Heads) -> Tensor:
        return apply_linear(self.o_proj, merge_heads(o))

    def maps(self, heads: Heads, masking: Masking) -> dict[str, Tensor]:
        masking = self._only_largest(heads, masking)
        A = attention_map(heads.q, heads.k, heads.v, **masking.of_maps)
        return {"signal": A, "difference": A}

    @torch.no_grad()  # the choice of keys has no gradient
    def _only_largest(self, heads: Heads, masking: Masking) -> Masking:
        """Return a masking that leaves each query the k largest of its visible scores."""
        q, k, mask = heads.q, repeat_heads(heads.k, heads.q.shape[1]), masking.mask
        dtype = statistics_dtype(q.dtype)  # as the softmax: rounded scores would have ties
        with without_autocast(q.device):
            scores = q.to(dtype) @ k.to(dtype).mT * self.head_dim**-0.5
        biased = mask is not None and mask.dtype != torch.bool
        if biased:
            if masking.softcap is not None:  # else it does not change the order
                scores = masking.softcap * torch.tanh(scores / masking.softcap)
            scores = scores + mask
        visible = masking.visible(q, k)
        if visible is not None:
            scores = scores.masked_fill(~visible, -torch.inf)
        least = scores.topk(min(self.options.k, k.shape[2]), dim=-1).values[..., -1:]
        largest = (scores >= least) & (scores > -torch.inf)  # [B, h, Tq, Tk]
        if mask is not None and biased:
            largest = mask.float().expand_as(scores).masked_fill(~largest, -torch.inf)
        return Masking(mask=largest, softcap=masking.softcap, dropout=masking.dropout)
