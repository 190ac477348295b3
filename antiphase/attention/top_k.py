"""Control: standard attention over the k largest scores of a row; sparse, nothing subtracted."""

from dataclasses import dataclass

import torch
from torch import Tensor

from antiphase.attention.heads import Heads
from antiphase.attention.standard import OneMap
from antiphase.ops import attention, attention_map, repeat_heads
from antiphase.ops.arguments import causal_mask


@dataclass(frozen=True)
class TopKOptions:
    """`k` keys that each query may see; equal scores at the edge all stay."""

    k: int = 32

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"k: got {self.k}, expected at least 1 key a query")


class TopK(OneMap):
    """Softmax over the k largest scores of a row."""

    name = "top_k"
    Options = TopKOptions

    def mix(self, heads: Heads, *, causal: bool, mask: Tensor | None, backend: str) -> Tensor:
        chosen = self._chosen(heads, causal, mask)
        return attention(heads.q, heads.k, heads.v, mask=chosen, backend=backend)

    def maps(self, heads: Heads, *, causal: bool, mask: Tensor | None) -> dict[str, Tensor]:
        chosen = self._chosen(heads, causal, mask)
        A = attention_map(heads.q, heads.k, heads.v, mask=chosen)
        return {"signal": A, "difference": A}

    @torch.no_grad()
    def _chosen(self, heads: Heads, causal: bool, mask: Tensor | None) -> Tensor:
        """Return the mask of each query's k largest visible scores, [B, h, Tq, Tk]."""
        scores = heads.q @ repeat_heads(heads.k, heads.q.shape[1]).mT
        scores = scores.float() * self.head_dim**-0.5
        Tq, Tk = scores.shape[-2:]
        if causal:
            scores = scores.masked_fill(~causal_mask(Tq, Tk, scores.device, Tk - Tq), -torch.inf)
        if mask is not None:
            boolean = mask.dtype == torch.bool
            scores = scores.masked_fill(~mask, -torch.inf) if boolean else scores + mask
        least = scores.topk(min(self.options.k, Tk), dim=-1).values[..., -1:]
        chosen = (scores >= least) & (scores > -torch.inf)
        if mask is None or mask.dtype == torch.bool:
            return chosen
        return mask.float().expand_as(scores).masked_fill(~chosen, -torch.inf)
