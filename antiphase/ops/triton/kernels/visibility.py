"""Which keys each query row sees, in the form that the kernels read.

Causality with a cache, windows and packed documents are all one interval of keys per query row,
`lo <= j < hi`. A window with `keep_first` adds a second one. Both ends grow with the row, so the
rows that see a block of keys are an interval, too. Plain causal calls need no bounds at all.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from .blocks import CAUSAL, FULL, KEPT, ROWS


@dataclass(frozen=True)
class Visibility:
    """What a kernel needs to know about visible keys; R is the batch size, or 1."""

    mode: int
    bounds: Tensor | None = None  # [2 or 4, R, Tq], int32: lo, hi (first, past last kept key)
    padding: Tensor | None = None  # [R, Tk], uint8: 1 for tokens
    key_range: Tensor | None = None  # [R, 2], int32: the first token and one past the last


def visibility(
    Tq: int,
    Tk: int,
    device: torch.device,
    *,
    causal: bool,
    window: int = 0,
    keep_first: int = 0,
    documents: Tensor | None = None,
    tokens: Tensor | None = None,
) -> Visibility:
    """Return who sees what.

    Args:
        Tq: Number of query rows, the last Tq of the key positions.
        Tk: Number of keys.
        device: Device of the call.
        causal: Mask the future.
        window: Number of keys up to the row's own position; 0: no window.
        keep_first: Number of keys at the beginning that stay visible beside the window.
        documents: First key and one past the last of the row's document [B, Tq, 2], int32.
        tokens: True for keys that are no padding [B or 1, Tk].
    """
    padding = key_range = None
    if tokens is not None:
        padding = tokens.to(torch.uint8).contiguous()
        position = torch.arange(Tk, device=device, dtype=torch.int32)
        low = torch.where(tokens, position, Tk).amin(1)
        high = torch.where(tokens, position + 1, 0).amax(1)
        key_range = torch.stack([low, high], dim=1).to(torch.int32).contiguous()
    if not window and documents is None:
        mode = CAUSAL.value if causal else FULL.value
        return Visibility(mode, None, padding, key_range)
    row = torch.arange(Tk - Tq, Tk, device=device, dtype=torch.int32)[None]  # [1, Tq]
    first, last = torch.zeros_like(row), torch.full_like(row, Tk)
    if documents is not None:
        first, last = documents.unbind(-1)  # each [B, Tq]
    lo, hi = first, torch.minimum(last, row + 1) if causal else last
    if window:
        lo = torch.maximum(first, row + 1 - window)
    kinds = [lo, hi]
    kept = bool(window and keep_first)
    if kept:
        kinds += [first, torch.minimum(first + keep_first, hi)]
    bounds = torch.stack(torch.broadcast_tensors(*kinds)).contiguous()
    return Visibility(KEPT.value if kept else ROWS.value, bounds, padding, key_range)


def row_ranges(seen: Visibility, Tk: int, block: int) -> Tensor:
    """Return which rows see a key of each block, for a call with bounds.

    Args:
        seen: From `visibility`, with bounds.
        Tk: Number of keys.
        block: Number of keys per block.

    Returns:
        The first row and one past the last, [R, number of blocks, 2], int32.
    """
    assert seen.bounds is not None
    lo, hi = seen.bounds[:2]
    start = torch.arange(0, Tk, block, device=lo.device, dtype=torch.int32).expand(len(lo), -1)
    start = start.contiguous()
    first_row = torch.searchsorted(hi.contiguous(), start, right=True)
    past_row = torch.searchsorted(lo.contiguous(), start + block)
    if seen.mode == KEPT.value:
        first, kept = (t.contiguous() for t in seen.bounds[2:])
        rows = torch.searchsorted(first, start + block)  # rows whose document begins before its end
        last = (rows - 1).clamp_min(0)
        reach = kept.cummax(1).values.gather(1, last) > start
        past_row = torch.maximum(past_row, torch.where(reach & (rows > 0), rows, 0))
    return torch.stack([first_row, past_row], dim=-1).to(torch.int32).contiguous()
