"""Control: standard attention over the k largest scores of each row; sparse, without subtraction.

A = softmax over { j : s_ij is among the k largest of row i }
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from antiphase.attention.base import Attention
from antiphase.attention.heads import Heads, Inputs, extend_cache, merge_heads, rope, split_heads
from antiphase.attention.parts import check_at_least_one
from antiphase.ops import (
    attention,
    attention_map,
    causal_mask,
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

    def build(self) -> None:
        D, d, bias = self.hidden_size, self.head_dim, self.bias
        self.q_proj = nn.Linear(D, self.num_heads * d, bias)
        self.k_proj = nn.Linear(D, self.num_kv_heads * d, bias)
        self.v_proj = nn.Linear(D, self.num_kv_heads * d, bias)
        self.o_proj = nn.Linear(self.num_heads * d, D, bias)

    def project(self, inputs: Inputs) -> Heads:
        x, context, d = inputs.x, inputs.context, self.head_dim
        q = split_heads(rope(self.q_proj(x), d, inputs.rotary), d)  # [B, h, Tq, d]
        k = split_heads(rope(self.k_proj(context), d, inputs.key_rotary), d)
        v = split_heads(self.v_proj(context), d)
        k, v = extend_cache(inputs.cache, k, v)  # [B, h_kv, Tk, d]
        return Heads(x, q, k, v)

    def attend(self, heads: Heads, *, causal: bool, mask: Tensor | None, backend: str) -> Tensor:
        largest = self._largest(heads, causal, mask)
        return attention(heads.q, heads.k, heads.v, mask=largest, backend=backend)

    def output(self, o: Tensor, heads: Heads) -> Tensor:
        return self.o_proj(merge_heads(o))

    def maps(self, heads: Heads, *, causal: bool, mask: Tensor | None) -> dict[str, Tensor]:
        largest = self._largest(heads, causal, mask)
        A = attention_map(heads.q, heads.k, heads.v, mask=largest)
        return {"signal": A, "difference": A}

    @torch.no_grad()  # the choice of keys has no gradient
    def _largest(self, heads: Heads, causal: bool, mask: Tensor | None) -> Tensor:
        """Return the mask of each query's k largest visible scores, [B, h, Tq, Tk]."""
        q, k = heads.q, repeat_heads(heads.k, heads.q.shape[1])
        dtype = statistics_dtype(q.dtype)  # as the softmax: rounded scores would have ties
        with without_autocast(q.device):
            scores = q.to(dtype) @ k.to(dtype).mT * self.head_dim**-0.5
        Tq, Tk = scores.shape[-2:]
        if causal:
            scores = scores.masked_fill(~causal_mask(Tq, Tk, scores.device, Tk - Tq), -torch.inf)
        if mask is not None:
            boolean = mask.dtype == torch.bool
            scores = scores.masked_fill(~mask, -torch.inf) if boolean else scores + mask
        least = scores.topk(min(self.options.k, Tk), dim=-1).values[..., -1:]
        largest = (scores >= least) & (scores > -torch.inf)
        if mask is None or mask.dtype == torch.bool:
            return largest
        return mask.float().expand_as(scores).masked_fill(~largest, -torch.inf)
