"""Where a row's attention goes: to the answer, to the first token, to everything else."""

from torch import Tensor

from antiphase.analysis.ground_truth import Truth


def normalised(A: Tensor) -> Tensor:
    """Return |A| with rows that sum to 1; a row of zeros stays."""
    A = A.abs().double()
    total = A.sum(-1, keepdim=True)
    return A / total.masked_fill(total == 0, 1.0)


def mass(A: Tensor, where: Tensor) -> Tensor:
    """Return what rows of A [B, h, n, T] hold at `where` [B, n, T]: [B, h, n]."""
    return (A * where[:, None]).sum(-1)


def allocation(A: Tensor, truth: Truth) -> dict[str, Tensor]:
    """Return the share of |A| on R, S and I, each [B, h, n]."""
    share = normalised(A)
    return {
        "relevant": mass(share, truth.relevant),
        "sink": mass(share, truth.sink),
        "irrelevant": mass(share, truth.irrelevant),
    }


def signal_gain(difference: Tensor, signal: Tensor, truth: Truth) -> Tensor:
    """Return how much more of its row the answer has after the subtraction, minus 1: [B, h, n]."""
    return (
        mass(normalised(difference), truth.relevant)
        / mass(signal.double(), truth.relevant).clamp_min(1e-12)
        - 1
    )
