"""How many dimensions a map has.

A causal triangle has full rank by itself, so a map is looked at in its block of rows >= T/2 and
columns < T/2, where every row sees every column.
"""

import torch
from torch import Tensor

from antiphase.ops.rank import effective_rank, lower_left

__all__ = [
    "effective_rank",
    "energy_rank",
    "lower_left",
    "participation_ratio",
    "singular_values",
    "truncated",
]


def singular_values(A: Tensor) -> Tensor:
    """Return the singular values of [..., m, n], largest first."""
    return torch.linalg.svdvals(A.double())


def participation_ratio(A: Tensor) -> Tensor:
    """Return (sum s^2)^2 / sum s^4."""
    s2 = singular_values(A) ** 2
    return s2.sum(-1) ** 2 / (s2**2).sum(-1).clamp_min(1e-300)


def energy_rank(A: Tensor, share: float = 0.9) -> Tensor:
    """Return how many singular values hold that share of the energy, sum s^2."""
    p = _shares(singular_values(A) ** 2)
    return ((p.cumsum(-1) < share - 1e-12).sum(-1) + 1).double()


def truncated(A: Tensor, rank: int) -> Tensor:
    """Return the nearest map of that rank."""
    U, s, V = torch.linalg.svd(A.double(), full_matrices=False)
    return ((U[..., :rank] * s[..., None, :rank]) @ V[..., :rank, :]).to(A.dtype)


def _shares(s: Tensor) -> Tensor:
    return s / s.sum(-1, keepdim=True).clamp_min(1e-300)
