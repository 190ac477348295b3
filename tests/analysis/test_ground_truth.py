"""R, S, I and the query's own positions, on sequences whose parts are known."""

import numpy as np
import pytest
import torch

from antiphase.analysis import ground_truth
from antiphase.analysis.ground_truth import without_answers
from antiphase.tasks import task
from antiphase.tasks.base import Examples, Role

ROLES = {
    "<": Role.SINK,
    ".": Role.HAYSTACK,
    "n": Role.NOISE,
    "k": Role.KEY,
    "a": Role.ANSWER,
    "q": Role.QUERY,
    "t": Role.TARGET,
}


def examples(roles: str, needle: str) -> Examples:
    """Return one sequence from a letter per position; the needle's number, or a dot for none."""
    found = np.array([[ROLES[r] for r in roles]])
    numbers = np.array([[-1 if n == "." else int(n) for n in needle]])
    return Examples(np.arange(len(roles))[None], found, found, numbers)


def kinds(truth, row=0):
    """Return the positions of R, S, I and own of one row."""
    masks = (truth.relevant, truth.sink, truth.irrelevant, truth.own)
    return [mask[0, row].nonzero()[:, 0].tolist() for mask in masks]


def test_the_query_itself_is_neither_relevant_nor_irrelevant():
    truth = ground_truth(examples("<.ka.nn.qt", "..00....00"))
    assert truth.rows.tolist() == [[8]]
    assert kinds(truth) == [[2, 3], [0], [1, 4, 5, 6, 7], [8]]
    assert truth.visible[0, 0].tolist() == [True] * 9 + [False]


def test_a_key_of_several_tokens():
    """Two needles that share a part; the query repeats all parts of its key before the answer."""
    truth = ground_truth(
        examples("<kkka.kkka.nnn.qqqt", "." + "0000" + "." + "1111" + "." * 5 + "1111")
    )
    R, S, I, own = kinds(truth)  # noqa: E741
    assert R == [6, 7, 8, 9]
    assert S == [0]
    assert own == [15, 16, 17]
    assert I == [1, 2, 3, 4, 5, 10, 11, 12, 13, 14]


def test_an_earlier_repetition_of_the_needle_is_relevant_even_next_to_the_query():
    truth = ground_truth(examples("<kkaqqtqqt", ".000000000"))
    assert truth.rows.tolist() == [[5, 8]]
    assert kinds(truth, 0) == [[1, 2, 3], [0], [], [4, 5]]
    assert kinds(truth, 1) == [[1, 2, 3, 4, 5, 6], [0], [], [7, 8]]


def test_a_target_of_several_tokens_belongs_to_its_query():
    truth = ground_truth(examples("<kaa.qtt", ".000.000"))
    assert truth.rows.tolist() == [[5, 6]]
    assert kinds(truth, 0) == [[1, 2, 3], [0], [4], [5]]
    assert kinds(truth, 1) == [[1, 2, 3], [0], [4], [5, 6]]


def test_a_query_without_an_answer_has_no_relevant_position():
    truth = ground_truth(examples("<.ka.qqt", "..00...."))
    assert kinds(truth) == [[], [0], [1, 2, 3, 4], [5, 6]]


@pytest.mark.parametrize("name", ["needle", "recall", "unanswerable", "arithmetic"])
def test_the_kinds_of_every_task_are_a_partition_of_the_visible_positions(name):
    truth = ground_truth(task(name)().examples(range(8)))
    masks = torch.stack([truth.relevant, truth.sink, truth.irrelevant, truth.own])
    assert torch.equal(masks.sum(0), truth.visible.long())
    at_row = truth.own.gather(2, truth.rows[..., None])
    assert bool(at_row.all())
    if name == "arithmetic":  # `? x9`
        assert truth.own.sum(-1).unique().tolist() == [2]


def test_text_without_answers_keeps_the_query_apart_as_well():
    truth = without_answers(torch.zeros(2, 10), rows=4)
    assert truth.rows.tolist() == [[6, 7, 8, 9]] * 2
    assert not truth.relevant.any()
    assert truth.own.sum(-1).tolist() == [[1] * 4] * 2
    assert truth.irrelevant.sum(-1).tolist() == [[5, 6, 7, 8]] * 2
    assert truth.visible.sum(-1).tolist() == [[7, 8, 9, 10]] * 2
