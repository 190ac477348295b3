"""How many dimensions a map has, as functions with gradients."""

import torch
from torch import Tensor


def lower_left(A: Tensor) -> Tensor:
    """Return the rows >= T/2 and columns < T/2 of whole maps [..., T, T].

    There every row sees every column; a causal triangle has full rank by itself.
    """
    T = A.shape[-1]
    if A.shape[-2] != T:
        raise ValueError(f"lower_left: got {A.shape[-2]} rows of {T} keys, expected the whole map")
    return A[..., T // 2 :, : T // 2]


def effective_rank(A: Tensor) -> Tensor:
    """Return exp of the entropy of the singular values of [..., m, n], normalised to sum 1."""
    s = torch.linalg.svdvals(A)
    p = s / s.sum(-1, keepdim=True).clamp_min(1e-30)
    return torch.exp(-(p * p.clamp_min(1e-30).log()).sum(-1))
