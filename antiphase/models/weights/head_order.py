"""How heads and channels are ordered, and the reorderings between layouts."""

import torch
from torch import Tensor


def halves_to_pairs(t: Tensor, heads: int) -> Tensor:
    """Reorder rows by head, from (0, 1, ..) + (H/2, ..) to the pairs (0, H/2), (1, H/2 + 1), .."""
    return t.unflatten(0, (2, heads // 2, -1)).transpose(0, 1).flatten(0, 2)


def pairs_to_halves(t: Tensor, heads: int) -> Tensor:
    """Undo `halves_to_pairs`."""
    return t.unflatten(0, (heads // 2, 2, -1)).transpose(0, 1).flatten(0, 2)


def interleaved_to_halves(t: Tensor, width: int) -> Tensor:
    """Reorder each head's rows for RoPE: from pairs (2i, 2i + 1) to pairs (i, i + width / 2)."""
    order = torch.cat([torch.arange(0, width, 2), torch.arange(1, width, 2)])
    return t.unflatten(0, (-1, width))[:, order].flatten(0, 1)
