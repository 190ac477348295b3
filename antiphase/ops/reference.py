"""The formula with materialised attention maps; every fast backend is tested against this file.

    A_b = softmax(cap(scale_b q_b k_b^T) + mask),  A = A_1 - lam A_2,  O = drop(A) V

Plain autograd, so second derivatives work. Memory grows with Tq * Tk.
"""

import torch
from torch import Tensor

from antiphase.ops.arguments import (
    Arguments,
    combined_mask,
    repeat_heads,
    statistics_dtype,
    without_autocast,
)
from antiphase.ops.dropout import dropout_mask


def maps(args: Arguments) -> list[Tensor]:
    """Return the attention maps [B, H, Tq, Tk] in the statistics' dtype, the signal map first."""
    with without_autocast(args.q1.device):
        return [_softmax(args, q, k, scale) for q, k, scale in args.pairs]


def _softmax(args: Arguments, q: Tensor, k: Tensor, scale: float) -> Tensor:
    H, dtype = args.q1.shape[1], statistics_dtype(q.dtype)
    scores = q.to(dtype) @ repeat_heads(k, q.shape[1]).to(dtype).mT * scale  # [B, heads, Tq, Tk]
    if args.softcap:
        scores = args.softcap * torch.tanh(scores / args.softcap)
    scores = repeat_heads(scores, H)
    if args.mask is not None and args.mask.dtype != torch.bool:
        scores = scores + args.mask.to(dtype)
    attend = combined_mask(args)
    if attend is not None:
        scores = scores.masked_fill(~attend, -torch.inf)
    every_row_attends = (
        args.mask is None and args.documents is None and args.q1.shape[2] <= args.k1.shape[2]
    )
    if attend is not None and not every_row_attends:
        # a fully masked row gets finite scores, then zeros: no NaN gradients
        scores = scores.masked_fill(~attend.any(dim=-1, keepdim=True), 0.0)
    if args.sink is not None:
        column = args.sink[:, None, None].expand(*scores.shape[:-1], 1)
        A = torch.softmax(torch.cat([scores, column], dim=-1), dim=-1)[..., :-1]
    else:
        A = torch.softmax(scores, dim=-1)
    # zero also in a row of NaN: what it does not attend to gets no gradient from it
    return A if attend is None else A.masked_fill(~attend, 0.0)


def combine(args: Arguments, softmax_maps: list[Tensor]) -> Tensor:
    """Return A_1 - lam A_2, or the only map."""
    signal = softmax_maps[0]
    return signal if args.lam is None else signal - args.lam * softmax_maps[1]


def rectify(A: Tensor, normalise: bool = False) -> Tensor:
    """Set the negative weights of an attention map to zero.

    Args:
        A: Attention map [..., Tq, Tk], a difference of two.
        normalise: Divide each row by its sum. A row without a positive weight stays zero, and so
            does one whose positive weights sum to no more than the rounding error of a difference.

    Returns:
        max(A, 0), or max(A, 0) / sum(max(A, 0)), in the shape and dtype of `A`.
    """
    A = torch.relu(A)
    if not normalise:
        return A
    total = A.sum(dim=-1, keepdim=True)
    positive = total > torch.finfo(A.dtype).eps
    return A * (positive / total.masked_fill(~positive, 1.0))


def drop(A: Tensor, dropout: float, seed: Tensor | None) -> Tensor:
    """Apply dropout to the map that is applied to V, [B, H, Tq, Tk]; without a seed, none."""
    if seed is None:
        return A
    B, H, Tq, Tk = A.shape
    return A * dropout_mask(seed.to(A.device), dropout, (B, H, Tq, Tk)) / (1 - dropout)


def apply(A: Tensor, v: Tensor) -> Tensor:
    """Return an attention map [B, H, Tq, Tk] applied to V: [B, H, Tq, dv], in the dtype of V."""
    v = repeat_heads(v, A.shape[1])
    with without_autocast(v.device):
        return (A @ v.to(A.dtype)).to(v.dtype)


def forward(args: Arguments) -> Tensor:
    """Return the output [B, H, Tq, dv]."""
    A = drop(combine(args, maps(args)), args.dropout, args.seed)
    return apply(A, args.v)
