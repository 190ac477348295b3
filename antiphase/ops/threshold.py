"""Threshold differential attention (arXiv 2601.12145): no softmax, most weights exactly zero.

    a_b = max(cos(q_b, k_b) - tau, 0)^p,  tau_i = beta sqrt(2 ln(n_i) / d),  A = a_1 - lam a_2

n_i is the number of keys that row i may attend to. tau is the largest of n_i cosines that is to be
expected by chance, so that chance alone passes it in few rows. Rows do not sum to 1. A row may be
dead: it has no weight at all, and gives zeros. From ln n_i = d / (2 beta^2) on, tau is above 1, and
every row is dead: d = 8 ends at 55 keys, d = 32 at 8.9 million.

The maps are materialised: memory grows with Tq * Tk.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from antiphase.ops import reference
from antiphase.ops.arguments import (
    Arguments,
    combined_mask,
    repeat_heads,
    statistics_dtype,
    validate,
    without_autocast,
)
from antiphase.ops.functional import Maps, apply_map


def threshold_attention(
    q1: Tensor,
    k1: Tensor,
    q2: Tensor,
    k2: Tensor,
    v: Tensor,
    lam: Tensor | float,
    *,
    beta: float = 1.0,
    power: float = 2.0,
    causal: bool = False,
    mask: Tensor | None = None,
    window: int | None = None,
    keep_first: int = 0,
    documents: Tensor | None = None,
    dropout: float = 0.0,
    dropout_seed: Tensor | None = None,
) -> Tensor:
    """Compute (a_1 - lam a_2) v with thresholded cosines in place of softmax maps.

    Args:
        q1: Signal queries [B, H, Tq, d].
        k1: Signal keys [B, Hkv, Tk, d]. Hkv divides H.
        q2: Noise queries [B, Hn, Tq, d]. Hn divides H.
        k2: Noise keys [B, Hkv_n, Tk, d]. Hkv_n divides Hn.
        v: Values [B, Hkv, Tk, dv].
        lam: A number, or a tensor that broadcasts to [B, H, Tq, 1].
        beta: Factor of the threshold.
        power: Exponent p of what exceeds it, at least 1.
        causal: Mask the future. Aligned to the bottom right: the last query attends to every key.
        mask: Broadcasts to [B, H, Tq, Tk]. Boolean (True: attend) or added to the cosines. A key
            with -inf, or with the lowest number of its dtype, does not count as visible.
        window: Each query attends to this many keys, the last of which is its own position (needs
            `causal`).
        keep_first: With a window, the first keys that stay visible to all later queries.
        documents: Document id of every key, [B, Tk] or [Tk], integers.
        dropout: Probability to drop a weight of the map that is applied to V.
        dropout_seed: Seed of the dropped weights, int64 [] on the CPU.

    Returns:
        The output [B, H, Tq, dv], in the dtype of `v`, also under autocast.

    Raises:
        ValueError: If shapes, dtypes or devices do not agree, or beta or power is out of range.
    """
    maps = threshold_maps(
        q1, k1, q2, k2, v, lam, beta=beta, power=power,
        causal=causal, mask=mask, window=window, keep_first=keep_first, documents=documents,
    )  # fmt: skip
    return apply_map(maps.A, v, dropout=dropout, dropout_seed=dropout_seed)


def threshold_maps(
    q1: Tensor,
    k1: Tensor,
    q2: Tensor,
    k2: Tensor,
    v: Tensor,
    lam: Tensor | float,
    *,
    beta: float = 1.0,
    power: float = 2.0,
    causal: bool = False,
    mask: Tensor | None = None,
    window: int | None = None,
    keep_first: int = 0,
    documents: Tensor | None = None,
) -> Maps:
    """Materialise the maps of `threshold_attention`, which takes the same arguments.

    Args:
        q1: Signal queries [B, H, Tq, d].
        k1: Signal keys [B, Hkv, Tk, d].
        q2: Noise queries [B, Hn, Tq, d].
        k2: Noise keys [B, Hkv_n, Tk, d].
        v: Values [B, Hkv, Tk, dv], only validated.
        lam: A number, or a tensor that broadcasts to [B, H, Tq, 1].
        beta: Factor of the threshold.
        power: Exponent p of what exceeds it, at least 1.
        causal: Mask the future, aligned to the bottom right.
        mask: Broadcasts to [B, H, Tq, Tk]. Boolean (True: attend) or added to the cosines.
        window: Each query attends to this many keys, the last of which is its own position.
        keep_first: With a window, the first keys that stay visible.
        documents: Document id of every key, [B, Tk] or [Tk], integers.

    Returns:
        Signal map, noise map and difference, each [B, H, Tq, Tk], in fp32 (fp64 for fp64 inputs).
    """
    if not (0 <= beta < math.inf and 1 <= power < math.inf):
        raise ValueError(
            f"beta, power: got {beta}, {power}, expected beta of at least 0 and power of at least 1"
        )
    args = validate(
        q1, k1, q2, k2, v, lam, None, mask, causal, None, None,
        window=window, keep_first=keep_first, documents=documents,
    )  # fmt: skip
    visible = _visible(args)
    with without_autocast(q1.device):
        A1, A2 = (_weights(args, q, k, visible, beta, power) for q, k, _ in args.pairs)
    return Maps(A1, A2, reference.combine(args, [A1, A2]))


def _weights(
    args: Arguments, q: Tensor, k: Tensor, visible: Tensor | None, beta: float, power: float
) -> Tensor:
    """Return max(cos(q, k) - tau, 0)^p, [B, H, Tq, Tk]."""
    H, Tk, dtype = args.q1.shape[1], k.shape[2], statistics_dtype(q.dtype)
    q, k = F.normalize(q.to(dtype), dim=-1), F.normalize(k.to(dtype), dim=-1)
    scores = repeat_heads(q @ repeat_heads(k, q.shape[1]).mT, H)
    if args.mask is not None and args.mask.dtype != torch.bool:
        scores = scores + args.mask.to(dtype)
    n = torch.full((1,), Tk, dtype=dtype, device=q.device)
    if visible is not None:
        scores = scores.masked_fill(~visible, 0.0)  # no inf, whose gradient would be NaN
        n = visible.sum(-1, keepdim=True).clamp_min(1).to(dtype)
    A = torch.relu(scores - beta * torch.sqrt(2 * n.log() / q.shape[-1])) ** power
    return A if visible is None else A.masked_fill(~visible, 0.0)


def _visible(args: Arguments) -> Tensor | None:
    """Return which keys count as visible, broadcastable to [B, H, Tq, Tk]; None for all."""
    visible, mask = combined_mask(args), args.mask
    if mask is None or mask.dtype == torch.bool:
        return visible
    assert visible is not None  # there is a mask
    return visible & (mask > torch.finfo(mask.dtype).min)
