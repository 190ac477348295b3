"""Which heads retrieve, on maps whose masses on R are set by hand."""

import pytest
import torch

from antiphase.analysis.capture import CapturedMaps, LayerMaps
from antiphase.analysis.ground_truth import GroundTruth, without_answers
from antiphase.analysis.retrieval_heads import retrieval_heads

T = 10


def planted_truth(B=2, n=1):
    """Return rows with 10 visible keys: a sink, two relevant, the query itself, six irrelevant."""
    kinds = torch.zeros(3, T, dtype=torch.bool)
    kinds[0, [3, 4]] = True
    kinds[1, 0] = True
    kinds[2] = ~(kinds[0] | kinds[1])
    kinds[2, T - 1] = False
    R, S, I = (k.expand(B, n, T) for k in kinds)  # noqa: E741
    return GroundTruth(torch.full((B, n), T - 1), R, S, I, torch.zeros(B, n))


def planted_maps(*layers, B=2, n=1):
    """Return layers of heads with those masses on R, half of them negative; the rest is on I."""
    found = []
    for masses in layers:
        A = torch.zeros(B, len(masses), n, T)
        A[..., 3] = torch.tensor(masses)[None, :, None] / 2
        A[..., 4] = -A[..., 3]
        A[..., 7] = 1 - torch.tensor(masses)[None, :, None]
        found.append(LayerMaps(A, A))
    return CapturedMaps(found, torch.full((B, n), T - 1), torch.zeros(B, n, 1))


def test_heads_above_half_of_the_largest_mass_retrieve():
    chosen = retrieval_heads(planted_maps((0.1, 0.3), (0.8, 0.41), (0.39, 0.0)), planted_truth())
    assert [mask.tolist() for mask in chosen.layers] == [
        [False, False],
        [True, True],
        [False, False],
    ]
    assert chosen.largest == pytest.approx(0.8)
    assert chosen.uniform == pytest.approx(0.2)
    assert chosen.masses[0].tolist() == pytest.approx([0.1, 0.3])


def test_a_model_that_retrieves_nowhere_is_told_by_its_largest_mass():
    chosen = retrieval_heads(planted_maps((0.1, 0.02)), planted_truth())
    assert chosen.layers[0].tolist() == [True, False]
    assert chosen.largest < chosen.uniform
    nowhere = retrieval_heads(planted_maps((0.0, 0.0)), planted_truth())
    assert nowhere.layers[0].tolist() == [False, False]
    assert nowhere.model_mean([torch.ones(2, 2)]) is None


def test_metrics_are_averaged_over_the_chosen_heads_by_example():
    chosen = retrieval_heads(planted_maps((0.1, 0.3), (0.8, 0.5), (0.2, 0.7)), planted_truth())
    values = [
        torch.tensor([[100.0, 100.0], [100.0, 100.0]]),
        torch.tensor([[1.0, 3.0], [5.0, 7.0]]),
        torch.tensor([[100.0, 8.0], [100.0, torch.nan]]),
    ]
    assert chosen.layer_mean(values[0], 0) is None
    assert chosen.layer_mean(values[1], 1).tolist() == [2, 6]
    assert chosen.layer_mean(values[2], 2)[0] == 8
    assert chosen.layer_mean(values[2], 2)[1].isnan()
    assert chosen.model_mean(values).tolist() == [4, 6]
    by_row = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])  # [B, h, n]
    assert chosen.layer_mean(by_row, 1).tolist() == [2.5]
    with pytest.raises(ValueError, match="got values of 2 layers, expected 3"):
        chosen.model_mean(values[:2])


def test_rows_without_an_answer_do_not_count():
    maps, truth = planted_maps((0.6, 0.2), n=2), planted_truth(n=2)
    relevant = truth.relevant.clone()
    relevant[:, 1] = False
    masked = GroundTruth(truth.rows, relevant, truth.sink, truth.irrelevant, truth.depth)
    assert retrieval_heads(maps, masked).masses[0].tolist() == pytest.approx([0.6, 0.2])
    with pytest.raises(ValueError, match="no row has relevant positions"):
        retrieval_heads(maps, without_answers(torch.zeros(2, T), rows=2))
