"""Attention sinks and outliers: mass on the first token, and activations of large magnitude."""

import torch
from torch import Tensor

from antiphase.analysis.ground_truth import GroundTruth
from antiphase.analysis.metrics.allocation import mass, normalised

TOP = (1, 2, 3, 10, 100)


def sink_mass(A: Tensor, truth: GroundTruth) -> Tensor:
    """Return the fraction of |A| on the first token; A is [B, h, n, T], the result [B, h, n]."""
    return mass(normalised(A), truth.sink)


def outliers(values: Tensor) -> dict[str, float]:
    """Return the largest magnitudes and the median one.

    Args:
        values: attention logits or hidden states of any shape; -inf (masked logits) is left out.

    Returns:
        `top-1`, `top-2`, ..., as far as there are values, and `median`.
    """
    v = values.detach()[values > -torch.inf].abs().double()
    largest = torch.topk(v, min(max(TOP), v.numel())).values
    found = {f"top-{k}": float(largest[k - 1]) for k in TOP if k <= len(largest)}
    return found | {"median": float(v.median())}
