"""FLOPs of fused attention, for PyTorch's FLOP counter."""

import torch


def attention_flops(
    q1: torch.Size, q2: torch.Size | None, v: torch.Size, products: tuple[int, int]
) -> int:
    """Count two FLOPs per multiply-add over the complete map, as PyTorch does for its attention.

    Args:
        q1: Shape of the signal queries.
        q2: Shape of the noise queries; None for one map.
        v: Shape of the values.
        products: The number of products with the width of the scores and with the width of V.
    """
    B, H, Tq, d = q1
    Tk, dv = v[2:]
    score, value = products
    flops = B * H * Tq * Tk * (d * score + dv * value)
    if q2 is not None:
        flops += B * q2[1] * Tq * Tk * q2[3] * score
    return 2 * flops
