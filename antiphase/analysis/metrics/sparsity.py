"""Sparsity of rows, and weights that have left the simplex.

All take a map A [B, h, n, T] and the mask of visible keys [B, n, T], and return [B, h, n]. Unless
said otherwise they are of |A| normalised to sum 1.
"""

import torch
from torch import Tensor

from antiphase.analysis.metrics.allocation import normalised


def entropy(A: Tensor, visible: Tensor) -> Tensor:
    """Return the entropy relative to that of a uniform row: 1 uniform, 0 one key."""
    p = normalised(A)
    bits = -(p * p.clamp_min(1e-300).log2()).sum(-1)
    return bits / visible.sum(-1)[:, None].double().clamp_min(2).log2()


def gini(A: Tensor, visible: Tensor) -> Tensor:
    """Return the Gini coefficient: 0 uniform, near 1 one key."""
    p = normalised(A).masked_fill(~visible[:, None], -1.0).sort(-1).values  # masked keys come first
    n = visible.sum(-1)[:, None, :, None].double()
    place = torch.arange(1, A.shape[-1] + 1, device=A.device) - (A.shape[-1] - n)
    weight = (2 * place - n - 1) / n
    return (p * weight * (place > 0)).sum(-1)


def hoyer(A: Tensor, visible: Tensor) -> Tensor:
    """Return Hoyer's sparsity (sqrt n - l1/l2) / (sqrt n - 1): 0 uniform, 1 one key."""
    p = normalised(A)
    root = visible.sum(-1)[:, None].double().clamp_min(2).sqrt()
    return (root - 1 / p.norm(dim=-1).clamp_min(1e-12)) / (root - 1)


def fraction_above_uniform(A: Tensor, visible: Tensor) -> Tensor:
    """Return the fraction of visible keys with more than the uniform weight."""
    n = visible.sum(-1)[:, None].double()
    return (normalised(A) > 1 / n[..., None]).sum(-1) / n


def negative_mass(A: Tensor, visible: Tensor) -> Tensor:
    """Return the fraction of |A| that is negative."""
    return (normalised(A) * (A < 0)).sum(-1)


def max_weight(A: Tensor, visible: Tensor) -> Tensor:
    """Return the largest normalised weight of a row."""
    return normalised(A).amax(-1)


def fraction_outside_simplex(A: Tensor, visible: Tensor) -> Tensor:
    """Return the fraction of visible weights outside [0, 1], of A itself before any head norm."""
    out = (A < 0) | (A > 1)
    return (out & visible[:, None]).sum(-1) / visible.sum(-1)[:, None].double()


def fraction_zero(A: Tensor, visible: Tensor) -> Tensor:
    """Return the fraction of visible weights that are exactly zero, of A itself."""
    return ((A == 0) & visible[:, None]).sum(-1) / visible.sum(-1)[:, None].double()


def dead(A: Tensor, visible: Tensor) -> Tensor:
    """Return 1 for a dead row, which has no weight at all, and 0 for any other."""
    return ((A == 0) | ~visible[:, None]).all(-1).double()
