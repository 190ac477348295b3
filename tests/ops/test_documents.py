"""Document ids from cumulative lengths and from positions, and the range of each row's document."""

import pytest
import torch

from antiphase.ops import documents_from_cu_seqlens, documents_from_position_ids
from antiphase.ops.documents import document_ranges


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_ids_from_cumulative_lengths(dtype: torch.dtype):
    ids = documents_from_cu_seqlens(torch.tensor([0, 3, 4, 8], dtype=dtype), 8)
    assert ids.tolist() == [0, 0, 0, 1, 2, 2, 2, 2]
    padded = documents_from_cu_seqlens(torch.tensor([0, 3, 3, 4], dtype=dtype), 6)
    assert padded.tolist() == [0, 0, 0, 2, 3, 3]  # an empty document, and padding behind the last


@pytest.mark.parametrize(
    "ends", [[1, 4], [0, 5, 3], [0, 9], []], ids=["no zero", "falling", "too long", "empty"]
)
def test_invalid_cumulative_lengths_raise(ends: list[int]):
    with pytest.raises(ValueError, match=r"cu_seqlens: got .* up to the length 8"):
        documents_from_cu_seqlens(torch.tensor(ends, dtype=torch.int32), 8)


def test_floats_raise():
    with pytest.raises(ValueError, match=r"cu_seqlens: got torch.float32 of shape \(2,\)"):
        documents_from_cu_seqlens(torch.tensor([0.0, 2.0]), 2)
    with pytest.raises(ValueError, match=r"position_ids: got torch.float32"):
        documents_from_position_ids(torch.zeros(1, 4))


def test_ids_from_positions():
    rows = torch.tensor([[0, 1, 2, 0, 0, 1], [5, 6, 7, 8, 9, 10], [1, 1, 0, 1, 3, 4]])
    expected = [[0, 0, 0, 1, 2, 2], [0] * 6, [0, 1, 2, 2, 3, 3]]
    assert documents_from_position_ids(rows).tolist() == expected
    assert documents_from_position_ids(rows[2]).tolist() == expected[2]
    assert documents_from_position_ids(rows[:, :1]).tolist() == [[0], [0], [0]]


def test_a_document_is_a_run_of_equal_ids():
    ids = torch.tensor([[4, 4, 1, 4, 4, 4]])  # the id 4 is used again: two documents
    expected = [[0, 2], [0, 2], [2, 3], [3, 6], [3, 6], [3, 6]]
    assert document_ranges(ids, 6)[0].tolist() == expected
    assert document_ranges(ids, 2)[0].tolist() == expected[-2:]
    assert document_ranges(ids, 8)[0].tolist() == [[0, 0], [0, 0], *expected]
    assert document_ranges(ids[:, :1], 1)[0].tolist() == [[0, 1]]
