"""Dropout of attention weights by counter: a hash of seed, batch, head, row and key.

Whether a weight is kept depends on nothing else, so that every backend, number of threads, block
size and recomputation drops the same weights. All arithmetic is modulo 2^32; the kernels have the
same few lines.
"""

import torch
from torch import Tensor

STEPS = 1 << 24  # dropout probabilities are multiples of 1 / STEPS
_LOW = 0xFFFFFFFF


def dropout_mask(
    seed: Tensor, p: float, shape: tuple[int, int, int, int], rows: slice = slice(None)
) -> Tensor:
    """Return which attention weights are kept.

    Args:
        seed: An integer [], int64.
        p: Probability to drop a weight, rounded to a multiple of 2^-24.
        shape: (B, H, Tq, Tk) of the attention map. Queries are the last Tq of the key positions.
        rows: The query rows to return, all by default.

    Returns:
        A boolean mask [B, H, rows, Tk] on the device of `seed`, True: kept.
    """
    B, H, Tq, Tk = shape
    row = torch.arange(Tq, device=seed.device)[rows] + Tk - Tq
    batch, head, key = (torch.arange(n, device=seed.device) for n in (B, H, Tk))
    bits = _mix(_mix((seed & _LOW) ^ 0x9E3779B9) + (seed >> 32 & _LOW))
    bits = _mix(bits + batch[:, None] * 0x85EBCA6B + head * 0xC2B2AE35)  # [B, H]
    bits = _mix(bits[..., None] + row)  # [B, H, rows]
    bits = _mix(bits[..., None] ^ (key * 0x9E3779B9 & _LOW))  # [B, H, rows, Tk]
    return bits >> 8 >= round(p * STEPS)


def _mix(x: Tensor) -> Tensor:
    """Hash 32-bit integers, stored as int64 whose upper half may hold anything."""
    x = x & _LOW
    x = (x ^ x >> 16) * 0x7FEB352D & _LOW
    x = (x ^ x >> 15) * 0x846CA68B & _LOW
    return x ^ x >> 16
