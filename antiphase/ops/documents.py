"""Packed sequences: several documents in one row, none of which attends to another.

A document is a run of equal ids in `documents` [B, T]. A change of id starts a new one, so an id
may be used again later.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def documents_from_cu_seqlens(cu_seqlens: Tensor, length: int) -> Tensor:
    """Return the document ids of positions from the cumulative lengths of the documents.

    Args:
        cu_seqlens: Integers [n + 1], 0 first, then the end of each document, as flash attention
            takes them.
        length: Number of positions. Those behind the last end are one more document (padding).

    Returns:
        Document ids [length], int32, counted from 0.

    Raises:
        ValueError: If `cu_seqlens` is no such list, or ends behind `length`.
    """
    if cu_seqlens.dim() != 1 or not _is_integer(cu_seqlens):
        raise ValueError(
            f"cu_seqlens: got {cu_seqlens.dtype} of shape {tuple(cu_seqlens.shape)}, expected "
            "integers [number of documents + 1]"
        )
    if not torch.compiler.is_compiling():
        ends = cu_seqlens.tolist()
        if not ends or ends[0] != 0 or ends != sorted(ends) or ends[-1] > length:
            raise ValueError(
                f"cu_seqlens: got {ends}, expected 0 first, then growing ends of documents up to "
                f"the length {length}"
            )
    positions = torch.arange(length, device=cu_seqlens.device, dtype=cu_seqlens.dtype)
    return torch.searchsorted(cu_seqlens, positions, right=True, out_int32=True) - 1


def documents_from_position_ids(position_ids: Tensor) -> Tensor:
    """Return the document ids of positions: a new one wherever a position does not continue.

    Args:
        position_ids: Integers [B, T] or [T], which count up within a document.

    Returns:
        Document ids of the same shape, int32, counted from 0 in every sequence.

    Raises:
        ValueError: If the positions are not integers.
    """
    if not _is_integer(position_ids) or position_ids.dim() not in (1, 2):
        raise ValueError(
            f"position_ids: got {position_ids.dtype} of shape {tuple(position_ids.shape)}, "
            "expected integers [B, T] or [T]"
        )
    starts = position_ids != position_ids.roll(1, dims=-1) + 1
    behind_the_first = torch.arange(position_ids.shape[-1], device=position_ids.device) > 0
    return (starts & behind_the_first).cumsum(-1, dtype=torch.int32)


def document_ranges(documents: Tensor, rows: int) -> Tensor:
    """Return which keys belong to the document of each query row.

    Args:
        documents: Document ids [B, Tk].
        rows: Number of query rows Tq: the last Tq of the key positions.

    Returns:
        The first key of each row's document and one past its last, [B, Tq, 2], int32. A row before
        the first key (Tq > Tk) has the empty range (0, 0).
    """
    Tk = documents.shape[1]
    first = _begin_of_runs(documents)
    last = Tk - _begin_of_runs(documents.flip(1)).flip(1)  # an end is a begin, seen from behind
    ranges = torch.stack([first, last], dim=-1).to(torch.int32)
    if rows > Tk:
        return F.pad(ranges, (0, 0, rows - Tk, 0))
    return ranges[:, Tk - rows :]


def _begin_of_runs(ids: Tensor) -> Tensor:
    """Return the position where each position's run of equal ids begins, [B, T]."""
    position = torch.arange(ids.shape[1], device=ids.device)
    return ((ids != ids.roll(1, dims=1)) * position).cummax(1).values


def _is_integer(t: Tensor) -> bool:
    return not (t.is_floating_point() or t.is_complex() or t.dtype == torch.bool)
