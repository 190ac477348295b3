"""Sinks and outliers: mass on the first token, and activations far above the usual."""

import torch
from torch import Tensor

from antiphase.analysis.ground_truth import Truth
from antiphase.analysis.metrics.allocation import mass, normalised

TOP = (1, 2, 3, 10, 100)


def sink_mass(A: Tensor, truth: Truth) -> Tensor:
    """Return the share of |A| on the first token, [B, h, n]."""
    return mass(normalised(A), truth.sink)


def outliers(values: Tensor) -> dict[str, float]:
    """Return the largest magnitudes, by their place, and the median one; masked scores are none."""
    v = values.detach()[values > -torch.inf].abs().double()
    largest = torch.topk(v, min(max(TOP), v.numel())).values
    found = {f"top-{k}": float(largest[k - 1]) for k in TOP if k <= len(largest)}
    return found | {"median": float(v.median())}
