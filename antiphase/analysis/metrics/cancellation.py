"""Whether the two maps share their noise, and whether the subtraction removes it.

Everything is pooled over the rows of a text: one number for each text and head, [B, h].
"""

import torch
from torch import Tensor

from antiphase.analysis.ground_truth import Truth

TINY = 1e-12


def rejection(signal: Tensor, difference: Tensor, truth: Truth) -> Tensor:
    """Return the common-mode rejection in dB; above 0, noise falls more than signal does.

    20 log10 ( sum_R |A| / sum_R A1 ) / ( sum_I |A| / sum_I A1 )
    """
    A, A1 = difference.abs().double(), signal.double()
    kept = [
        _total(A, where) / _total(A1, where).clamp_min(TINY)
        for where in (truth.relevant, truth.irrelevant)
    ]
    return 20 * torch.log10(kept[0].clamp_min(TINY) / kept[1].clamp_min(TINY))


def correlation(signal: Tensor, noise: Tensor, where: Tensor) -> Tensor:
    """Return Pearson's correlation of log A1 and log A2 at `where` [B, n, T].

    Each row is taken beside its own mean: rows that see more keys have smaller weights in any map,
    and that alone would make two maps agree.
    """
    w = where[:, None].double()
    count = w.sum(-1, keepdim=True).clamp_min(1.0)
    logs = (A.double().clamp_min(TINY).log() for A in (signal, noise))
    x, y = (t - (t * w).sum(-1, keepdim=True) / count for t in logs)
    xy, xx, yy = ((a * b * w).sum((-1, -2)) for a, b in ((x, y), (x, x), (y, y)))
    return xy / (xx * yy).sqrt().clamp_min(TINY)


def disagreement(signal: Tensor, noise: Tensor, where: Tensor) -> Tensor:
    """Return the mean of |A1 - A2| / (A1 + A2) at `where`: 0 alike, 1 nothing in common."""
    a, b = signal.double(), noise.double()
    share = (a - b).abs() / (a + b).clamp_min(TINY)
    return _total(share, where) / where.sum((-1, -2)).clamp_min(1)[:, None]


def divergence(signal: Tensor, noise: Tensor, where: Tensor) -> Tensor:
    """Return the Jensen-Shannon divergence (bits) of the maps at `where`, renormalised there."""
    w = where[:, None]
    p, q = (_renormalised(A.double() * w) for A in (signal, noise))
    m = (p + q) / 2
    each = (_kl(p, m) + _kl(q, m)) / 2  # [B, h, n]
    counted = (where.sum(-1) > 1)[:, None].double()  # one key: nothing to compare
    return (each * counted).sum(-1) / counted.sum(-1).clamp_min(1.0)


def optimal_weight(signal: Tensor, noise: Tensor, truth: Truth) -> Tensor:
    """Return lam* = <A1, A2>_I / <A2, A2>_I, which removes most of the noise in A1."""
    A1, A2, where = signal.double(), noise.double(), truth.irrelevant
    return _total(A1 * A2, where) / _total(A2 * A2, where).clamp_min(TINY)


def from_another_head(noise: Tensor) -> Tensor:
    """Return the null: the same maps, each head's from the next one."""
    return noise.roll(1, dims=1)


def _total(A: Tensor, where: Tensor) -> Tensor:
    return (A * where[:, None]).sum((-1, -2))


def _renormalised(A: Tensor) -> Tensor:
    return A / A.sum(-1, keepdim=True).clamp_min(TINY)


def _kl(p: Tensor, m: Tensor) -> Tensor:
    ratio = torch.where(p > 0, p / m.clamp_min(TINY), torch.ones_like(p))
    return (p * ratio.log2()).sum(-1)
