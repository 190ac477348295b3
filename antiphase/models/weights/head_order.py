"""Orders of heads and channels in a projection's rows, and the permutations between layouts."""

import torch
from torch import Tensor


def halves_to_pairs(t: Tensor, heads: int) -> Tensor:
    """Reorder heads so that those paired by halves, i and i + H/2, become adjacent.

    Args:
        t: weight [H * d, D] or bias [H * d] of a projection.
        heads: H.
    """
    return t.unflatten(0, (2, heads // 2, -1)).transpose(0, 1).flatten(0, 2)


def pairs_to_halves(t: Tensor, heads: int) -> Tensor:
    """Undo `halves_to_pairs`.

    Args:
        t: weight [H * d, D] or bias [H * d] of a projection.
        heads: H.
    """
    return t.unflatten(0, (heads // 2, 2, -1)).transpose(0, 1).flatten(0, 2)


def interleaved_to_halves(t: Tensor, width: int) -> Tensor:
    """Reorder each head's channels for RoPE: rotated pairs (2i, 2i + 1) become (i, i + width / 2).

    Args:
        t: weight [heads * width, D] or bias [heads * width] of a projection.
        width: of each head.
    """
    order = torch.cat([torch.arange(0, width, 2), torch.arange(1, width, 2)])
    return t.unflatten(0, (-1, width))[:, order].flatten(0, 1)
