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


def row_ranges(seen: Visibility, Tq: int, Tk: int) -> Tensor | None:
    """Return which rows see each key; None where the kernel knows (full, causal).

    Both ends of a row's keys grow with the row, so the rows of a key are an interval, too. A key
    that is kept beside the window is seen by all later rows of its document; padding by none.

    Args:
        seen: From `visibility`.
        Tq: Number of query rows.
        Tk: Number of keys.

    Returns:
        The first row and one past the last, [2, R, Tk], int32.
    """
    if seen.bounds is None and seen.padding is None:
        return None
    device = (seen.padding if seen.bounds is None else seen.bounds).device  # type: ignore[union-attr]
    key = torch.arange(Tk, device=device, dtype=torch.int32)[None]
    if seen.bounds is None:
        begin = (key - (Tk - Tq)).clamp_min(0) if seen.mode == CAUSAL.value else 0 * key
        end = torch.full_like(key, Tq)
    else:
        key = key.expand(seen.bounds.shape[1], -1).contiguous()
        lo, hi, *kept = (t.contiguous() for t in seen.bounds)
        begin = torch.searchsorted(hi, key, right=True, out_int32=True)
        end = torch.searchsorted(lo, key, right=True, out_int32=True)
        if kept:
            first, past = kept
            rows = torch.searchsorted(first, key, right=True, out_int32=True)
            last = (rows - 1).clamp_min(0).long()  # the last row of the key's document
            is_kept = (rows > 0) & (past.gather(1, last) > key)
            end = torch.where(is_kept, torch.maximum(end, rows), end)
    if seen.padding is not None:
        end = torch.where(seen.padding != 0, end, 0)
    return torch.stack(torch.broadcast_tensors(begin, end)).contiguous()
