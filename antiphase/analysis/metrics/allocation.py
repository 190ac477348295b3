"""Where a row's attention goes: to the answer (R), the sink (S), noise (I) or the query itself."""

import torch
from torch import Tensor

from antiphase.analysis.ground_truth import GroundTruth


def normalised(A: Tensor) -> Tensor:
    """Return |A| with rows that sum to 1, in fp64; a row of zeros stays zero."""
    A = A.abs().double()
    total = A.sum(-1, keepdim=True)
    return A / total.masked_fill(total == 0, 1.0)


def mass(A: Tensor, where: Tensor) -> Tensor:
    """Sum the weights of a map at some key positions.

    Args:
        A: attention map, [B, h, n, T].
        where: mask of key positions, [B, n, T].

    Returns:
        The sum per row, [B, h, n].
    """
    return (A * where[:, None]).sum(-1)


def allocation(A: Tensor, truth: GroundTruth) -> dict[str, Tensor]:
    """Return the fraction of |A| on R, S, I and the query's own positions.

    Args:
        A: attention map, [B, h, n, T].
        truth: which positions are R, S and I.

    Returns:
        `relevant`, `sink`, `irrelevant` and `own`, each [B, h, n]; they sum to 1, or to 0 in a row
        without any weight.
    """
    fractions = normalised(A)
    return {
        "relevant": mass(fractions, truth.relevant),
        "sink": mass(fractions, truth.sink),
        "irrelevant": mass(fractions, truth.irrelevant),
        "own": mass(fractions, truth.own),
    }


def signal_gain(difference: Tensor, signal: Tensor, truth: GroundTruth) -> Tensor:
    """Return the relative gain of the mass on R by the subtraction, pooled over rows.

    The fraction of |A1 - lam A2| on R over the mass of A1 on R, minus 1.

    Args:
        difference: A1 - lam A2, [B, h, n, T].
        signal: A1, [B, h, n, T].
        truth: which positions are R.

    Returns:
        The gain per sequence and head, [B, h]; NaN where A1 has no mass on R.
    """
    before = mass(signal.double(), truth.relevant).sum(-1)
    after = mass(normalised(difference), truth.relevant).sum(-1)
    return after / before.masked_fill(before == 0, torch.nan) - 1
