"""Whether A1 and A2 have noise in common, and whether the subtraction removes it.

Everything is pooled over the rows of a sequence: one number per sequence and head, [B, h].
"""

import torch
from torch import Tensor

from antiphase.analysis.ground_truth import GroundTruth

TINY = 1e-12


def rejection(signal: Tensor, difference: Tensor, truth: GroundTruth) -> Tensor:
    """Return the common-mode rejection ratio (CMRR) in dB.

    20 log10 ( sum_R |A| / sum_R A1 ) / ( sum_I |A| / sum_I A1 ). Above 0, the subtraction reduces
    noise more than signal.

    Args:
        signal: A1, [B, h, n, T].
        difference: A = A1 - lam A2, [B, h, n, T].
        truth: which positions are R and I.

    Returns:
        dB per sequence and head, [B, h]; NaN where A1 has no weight on R or on I.
    """
    A, A1 = difference.abs().double(), signal.double()
    kept = []
    for where in (truth.relevant, truth.irrelevant):
        before = _total(A1, where)
        kept.append(_total(A, where) / before.masked_fill(before == 0, torch.nan))
    return 20 * torch.log10(kept[0].clamp_min(TINY) / kept[1].clamp_min(TINY))


def output_rejection(
    signal: Tensor, difference: Tensor, values: Tensor, truth: GroundTruth
) -> Tensor:
    """Return the rejection ratio in dB of what a head passes on, rather than of its weights.

    20 log10 ( |sum_R A v| / |sum_R A1 v| ) / ( |sum_I A v| / |sum_I A1 v| ), with norms of vectors.
    Weights of both signs that cancel in the sum count as cancelled.

    Args:
        signal: A1, [B, h, n, T].
        difference: A = A1 - lam A2, [B, h, n, T].
        values: V, [B, h, T, dv].
        truth: which positions are R and I.

    Returns:
        dB per sequence and head, [B, h]; NaN where A1 takes nothing from R or from I.
    """
    kept = []
    for where in (truth.relevant, truth.irrelevant):
        after, before = (
            ((A.double() * where[:, None]) @ values.double()).norm(dim=-1).sum(-1)
            for A in (difference, signal)
        )
        kept.append(after / before.masked_fill(before == 0, torch.nan))
    return 20 * torch.log10(kept[0].clamp_min(TINY) / kept[1].clamp_min(TINY))


def correlation(signal: Tensor, noise: Tensor, where: Tensor) -> Tensor:
    """Return Pearson's correlation of log A1 and log A2 at some key positions.

    Each row is centred on its own mean: a row with more visible keys has smaller weights in any
    map, and that alone would make two maps correlate.

    Args:
        signal: A1, [B, h, n, T].
        noise: A2, [B, h, n, T].
        where: mask of key positions, [B, n, T].

    Returns:
        One correlation per sequence and head, [B, h]; NaN where no row has two such positions.
    """
    w = where[:, None].double()
    count = w.sum(-1, keepdim=True).clamp_min(1.0)
    logs = (A.double().clamp_min(TINY).log() for A in (signal, noise))
    x, y = (t - (t * w).sum(-1, keepdim=True) / count for t in logs)
    xy, xx, yy = ((p * q * w).sum((-1, -2)) for p, q in ((x, y), (x, x), (y, y)))
    defined = (where.sum(-1) > 1).any(-1)[:, None]
    return (xy / (xx * yy).sqrt().clamp_min(TINY)).masked_fill(~defined, torch.nan)


def correlation_over_sequences(signal: Tensor, noise: Tensor, where: Tensor) -> Tensor:
    """Return Pearson's correlation of log A1 and log A2 at `where`, over all sequences together.

    For positions of which a row has too few for a correlation of its own, such as R: with two
    positions it would be 1 or -1.

    Args:
        signal: A1, [B, h, n, T].
        noise: A2, [B, h, n, T].
        where: mask of key positions, [B, n, T].

    Returns:
        One correlation per head, repeated for every sequence, [B, h]; NaN with fewer than three
        positions in all.
    """
    B, h = signal.shape[:2]
    found = []
    for head in range(h):
        x, y = (A[:, head][where].double().clamp_min(TINY).log() for A in (signal, noise))
        enough = x.numel() >= 3
        found.append(
            torch.corrcoef(torch.stack([x, y]))[0, 1] if enough else x.new_tensor(torch.nan)
        )
    return torch.stack(found).expand(B, h)


def disagreement(signal: Tensor, noise: Tensor, where: Tensor) -> Tensor:
    """Return the mean of |A1 - A2| / (A1 + A2) at `where`, [B, h]: 0 equal, 1 no overlap."""
    A1, A2 = signal.double(), noise.double()
    relative = (A1 - A2).abs() / (A1 + A2).clamp_min(TINY)
    return _total(relative, where) / where.sum((-1, -2)).clamp_min(1)[:, None]


def divergence(signal: Tensor, noise: Tensor, where: Tensor) -> Tensor:
    """Return the Jensen-Shannon divergence of A1 and A2 at `where`, in bits, [B, h].

    Both maps are renormalised over `where`; rows with a single key there are left out.
    """
    w = where[:, None]
    p, q = (_renormalised(A.double() * w) for A in (signal, noise))
    m = (p + q) / 2
    each = (_kl(p, m) + _kl(q, m)) / 2  # [B, h, n]
    counted = (where.sum(-1) > 1)[:, None].double()
    return (each * counted).sum(-1) / counted.sum(-1).clamp_min(1.0)


def optimal_weight(signal: Tensor, noise: Tensor, truth: GroundTruth) -> Tensor:
    """Return lam* = <A1, A2>_I / <A2, A2>_I, the lam that removes most noise from A1, [B, h]."""
    A1, A2, where = signal.double(), noise.double(), truth.irrelevant
    return _total(A1 * A2, where) / _total(A2 * A2, where).clamp_min(TINY)


def from_another_head(noise: Tensor) -> Tensor:
    """Return a null of agreement: A2 of the next head of the layer in place of each head's.

    Args:
        noise: A2, [B, h, n, T]. With four heads or more it is a fair null: two heads only swap.

    Raises:
        ValueError: the layer has one head.
    """
    if noise.shape[1] < 2:
        raise ValueError(
            "from_another_head: the layer has 1 head, expected at least 2; take A2 of another "
            "example (from_another_example) as the null"
        )
    return noise.roll(1, dims=1)


def from_another_example(noise: Tensor) -> Tensor:
    """Return a null of agreement: A2 of the previous sequence of the batch in place of each one's.

    Its rows are those of the other sequence. Where they are at other positions than this one's,
    compare the maps on `visible_in_both`.

    Args:
        noise: A2, [B, h, n, T].

    Raises:
        ValueError: the batch has one sequence.
    """
    if noise.shape[0] < 2:
        raise ValueError("from_another_example: the batch has 1 sequence, expected at least 2")
    return noise.roll(1, dims=0)


def visible_in_both(where: Tensor, truth: GroundTruth) -> Tensor:
    """Return the positions of a mask [B, n, T] that the row of the other sequence sees, too.

    Args:
        where: mask of key positions of each sequence, such as I.
        truth: of the batch; the other sequence is that of `from_another_example`.
    """
    return where & truth.visible.roll(1, dims=0)


def _total(A: Tensor, where: Tensor) -> Tensor:
    return (A * where[:, None]).sum((-1, -2))


def _renormalised(A: Tensor) -> Tensor:
    return A / A.sum(-1, keepdim=True).clamp_min(TINY)


def _kl(p: Tensor, m: Tensor) -> Tensor:
    ratio = torch.where(p > 0, p / m.clamp_min(TINY), torch.ones_like(p))
    return (p * ratio.log2()).sum(-1)
