"""The formula, materialised: every fast backend is tested against this file.

    A_b = softmax(scale_b q_b k_b^T + mask),  A = A_1 - lam A_2,  O = A V

Plain autograd, so second derivatives work. Memory grows with Tq * Tk.
"""

import torch
from torch import Tensor

from antiphase.ops.arguments import Arguments, repeat_heads, statistics_dtype, visible


def maps(a: Arguments) -> list[Tensor]:
    """Return the softmax map(s) [B, H, Tq, Tk] in the statistics' dtype, the signal's first."""
    return [_softmax(a, q, k, scale) for q, k, scale in a.pairs]


def _softmax(a: Arguments, q: Tensor, k: Tensor, scale: float) -> Tensor:
    H, dtype = a.q1.shape[1], statistics_dtype(q.dtype)
    scores = q.to(dtype) @ repeat_heads(k, q.shape[1]).to(dtype).mT * scale  # [B, heads, Tq, Tk]
    scores = repeat_heads(scores, H)
    if a.mask is not None and a.mask.dtype != torch.bool:
        scores = scores + a.mask.to(dtype)
    may = visible(a)
    if may is not None:
        scores = scores.masked_fill(~may, -torch.inf)
    if a.sink is not None:
        column = a.sink[:, None, None].expand(*scores.shape[:-1], 1)
        return torch.softmax(torch.cat([scores, column], dim=-1), dim=-1)[..., :-1]
    if may is not None:  # a row that sees nothing: any finite scores, then zeros
        blind = ~may.any(dim=-1, keepdim=True)
        scores = scores.masked_fill(blind, 0.0)
        return torch.softmax(scores, dim=-1).masked_fill(blind, 0.0)
    return torch.softmax(scores, dim=-1)


def combine(a: Arguments, both: list[Tensor]) -> Tensor:
    """Return the map that meets V: A_1 - lam A_2, or the only map there is."""
    return both[0] if a.lam is None else both[0] - a.lam * both[1]


def forward(a: Arguments) -> Tensor:
    """Return the output [B, H, Tq, dv]."""
    v = repeat_heads(a.v, a.q1.shape[1])
    return (combine(a, maps(a)) @ v.to(statistics_dtype(v.dtype))).to(v.dtype)
