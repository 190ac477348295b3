"""Effective rank of attention maps, differentiable."""

import torch
from torch import Tensor


def lower_left(A: Tensor) -> Tensor:
    """Cut the lower left quarter out of causal maps, where no entry is masked.

    A causal triangle has full rank by itself, so the rank of the complete map says nothing.

    Args:
        A: Complete attention maps [..., T, T].

    Returns:
        Rows >= T/2 and columns < T/2.

    Raises:
        ValueError: If the maps are not square.
    """
    T = A.shape[-1]
    if A.shape[-2] != T:
        raise ValueError(
            f"lower_left: got {A.shape[-2]} rows and {T} keys, expected the complete map [T, T]"
        )
    return A[..., T // 2 :, : T // 2]


def effective_rank(A: Tensor) -> Tensor:
    """Compute exp of the entropy of the singular values, normalised to sum 1.

    Args:
        A: Matrices [..., m, n].

    Returns:
        The effective rank [...], between 1 and min(m, n).
    """
    singular_values = torch.linalg.svdvals(A)
    p = singular_values / singular_values.sum(-1, keepdim=True).clamp_min(1e-30)
    return torch.exp(-(p * p.clamp_min(1e-30).log()).sum(-1))
