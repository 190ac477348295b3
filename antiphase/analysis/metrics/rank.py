"""Rank of attention maps.

A causal triangle has full rank by itself, so ranks are taken of the block of rows >= T/2 and
columns < T/2 (`lower_left`), where every row can attend to every column. The rank of a complete map
means something only beside that of `uniform_causal`.
"""

import torch
from torch import Tensor

from antiphase.ops.rank import effective_rank, lower_left

__all__ = [
    "effective_rank",
    "energy_rank",
    "lower_left",
    "participation_ratio",
    "ranks_of_spectrum",
    "singular_values",
    "truncated",
    "uniform_causal",
]


def singular_values(A: Tensor) -> Tensor:
    """Return the singular values of [..., m, n] in fp64, largest first: [..., min(m, n)]."""
    return torch.linalg.svdvals(A.double())


def participation_ratio(A: Tensor) -> Tensor:
    """Return (sum s^2)^2 / sum s^4 of the singular values of [..., m, n]."""
    return _participation_ratio(singular_values(A))


def energy_rank(A: Tensor, fraction: float = 0.9) -> Tensor:
    """Return how many singular values of [..., m, n] hold that fraction of the energy, sum s^2."""
    return _energy_rank(singular_values(A), fraction)


def ranks_of_spectrum(s: Tensor) -> dict[str, Tensor]:
    """Return all three ranks of matrices by their singular values, which are expensive.

    Args:
        s: singular values, [..., k].

    Returns:
        `effective rank`, `participation ratio` and `rank at 90% energy`, each [...].
    """
    p = s / s.sum(-1, keepdim=True).clamp_min(1e-30)
    return {
        "effective rank": torch.exp(-(p * p.clamp_min(1e-30).log()).sum(-1)),
        "participation ratio": _participation_ratio(s),
        "rank at 90% energy": _energy_rank(s, 0.9),
    }


def _participation_ratio(s: Tensor) -> Tensor:
    energy = s**2
    return energy.sum(-1) ** 2 / (energy**2).sum(-1).clamp_min(1e-300)


def _energy_rank(s: Tensor, fraction: float) -> Tensor:
    energy = s**2
    energy = energy / energy.sum(-1, keepdim=True).clamp_min(1e-300)
    return ((energy.cumsum(-1) < fraction - 1e-12).sum(-1) + 1).double()


def truncated(A: Tensor, rank: int) -> Tensor:
    """Return the nearest matrix of that rank to [..., m, n]."""
    U, s, V = torch.linalg.svd(A.double(), full_matrices=False)
    return ((U[..., :rank] * s[..., None, :rank]) @ V[..., :rank, :]).to(A.dtype)


def uniform_causal(T: int) -> Tensor:
    """Return the causal map [T, T] whose rows spread their weight evenly, in fp64."""
    ones = torch.ones(T, T, dtype=torch.double).tril()
    return ones / ones.sum(-1, keepdim=True)
