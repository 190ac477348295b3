"""Where a row's attention goes: to the answer (R), the sink (S), everything else (I)."""

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
    """Return the fraction of |A| on R, S and I.

    Args:
        A: attention map, [B, h, n, T].
        truth: which positions are R, S and I.

    Returns:
        `relevant`, `sink` and `irrelevant`, each [B, h, n]; they sum to 1.
    """
    fractions = normalised(A)
    return {
        "relevant": mass(fractions, truth.relevant),
        "sink": mass(fractions, truth.sink),
        "irrelevant": mass(fractions, truth.irrelevant),
    }


def signal_gain(difference: Tensor, signal: Tensor, truth: GroundTruth) -> Tensor:
    """Return the relative gain of the mass on R by the subtraction, [B, h, n].

    The fraction of |A1 - lam A2| on R over the mass of A1 on R, minus 1.

    Args:
        difference: A1 - lam A2, [B, h, n, T].
        signal: A1, [B, h, n, T].
        truth: which positions are R.
    """
    return (
        mass(normalised(difference), truth.relevant)
        / mass(signal.double(), truth.relevant).clamp_min(1e-12)
        - 1
    )
