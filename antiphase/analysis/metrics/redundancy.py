"""Head redundancy: how similar the heads of a layer are, by their maps and by their outputs."""

import itertools

import torch
from torch import Tensor


def cosine_distance(A: Tensor) -> Tensor:
    """Return the mean of 1 - cosine over pairs of heads.

    Args:
        A: attention maps, [B, h, n, T].

    Returns:
        One distance per sequence, [B]; 0 with a single head.
    """
    h = A.shape[1]
    if h < 2:
        return A.new_zeros(len(A), dtype=torch.double)
    x = A.flatten(2).double()
    x = x / x.norm(dim=-1, keepdim=True).clamp_min(1e-12)
    cosines = x @ x.mT
    return 1 - (cosines.sum((-1, -2)) - h) / (h * (h - 1))


def cka(outputs: Tensor) -> float:
    """Return the mean linear CKA over pairs of heads, of outputs [B, T, h, dv]; 1 with one head."""
    heads = [x - x.mean(0) for x in outputs.flatten(0, 1).double().unbind(1)]  # [B T, dv]
    if len(heads) < 2:
        return 1.0
    pairs = itertools.combinations(heads, 2)
    return float(torch.stack([_linear_cka(x, y) for x, y in pairs]).mean())


def _linear_cka(x: Tensor, y: Tensor) -> Tensor:
    cross, own = (x.mT @ y).square().sum(), (x.mT @ x).norm() * (y.mT @ y).norm()
    return cross / own.clamp_min(1e-12)
