"""The path from planted answers and maps to the verdicts of the study `synthetic`.

Predictions about two arms in one condition are in `test_planted.py`, for these tests, too.
"""

from functools import partial

import numpy as np
import pytest

from antiphase.experiments import e16_order
from antiphase.experiments.e10_caution import ARMS as UNANSWERABLE
from antiphase.experiments.e16_order import ORDERS
from antiphase.experiments.e23_full_grid import AXES
from tests.experiments.planted import I, R, S, World, measure


@pytest.fixture
def judged(monkeypatch):
    """Return a function from the number of a test and a world to its judgements."""

    def of(number, **planted):
        return measure(number, World(**planted), monkeypatch).judgements()

    return of


def found(judgements, *which):
    return [judgements[i].verdict for i in which or range(len(judgements))]


@pytest.mark.parametrize(
    ("planted", "verdict"),
    [
        ({"gains": {"lam = 1.0": {(1.5, "near"): 0.5}}}, S),
        ({}, R),
        ({"gains": {"lam = 1.0": {(1.5, "near"): 0.5, (1.5, "far"): 0.5}}}, R),  # it does not grow
        ({"gains": {"lam = 0.0": {(1.5, "near"): 0.5}}}, R),
        ({"learned": {"lam = 1.0": 0.6}}, I),
        ({"slope": 0.15}, I),  # the loss hardly grows with noise
    ],
)
def test_whether_lam_of_1_gains_more_with_near_distractors(planted, verdict, judged):
    assert found(judged(2, **{"slope": 1.5, **planted}), 1) == [verdict]


@pytest.mark.parametrize(
    ("planted", "verdict"),
    [
        ({"retrieving": "common"}, S),  # lam is 0.5, the noise is A2 / 1.75
        ({"retrieving": "own"}, R),
        ({"retrieving": "own", "elsewhere": "common"}, R),
        ({}, R),  # nothing is subtracted
        ({"retrieving": "common", "noise": 0.02}, I),
    ],
)
def test_whether_lam_is_the_one_that_removes_most_noise(planted, verdict, judged):
    assert found(judged(2, **planted), 2) == [verdict]


@pytest.mark.parametrize(
    ("planted", "expected"),
    [
        ({"before": "own", "retrieving": "common"}, [S, R]),  # it rises; it stays
        ({"before": "common", "retrieving": "own"}, [R, R]),
        ({"before": "own", "retrieving": "own"}, [R, S]),
        ({"before": "own", "retrieving": "own", "elsewhere": "common"}, [R, S]),
        ({"before": "own", "retrieving": "common", "noise": 0.02}, [I, I]),
        ({"before": "own", "retrieving": "common", "learned": {"V1": 0.6}}, [I, I]),
    ],
)
def test_agreement_over_training(planted, expected, judged):
    assert found(judged(3, **planted)) == expected


def test_a_v1_that_does_not_subtract_is_no_test_of_subtraction(judged):
    better = {"V1": 0.85}
    assert found(judged(2, stress=better, retrieving="own"), 0) == [S]
    assert found(judged(2, stress=better, retrieving="plain"), 0) == [I]  # lam is 0


STANDARD, V1 = (UNANSWERABLE[name].name for name in ("standard", "V1"))


@pytest.mark.parametrize(
    ("planted", "verdict"),
    [
        ({"hallucinated": {V1: 0.2}}, S),
        ({}, R),
        ({"hallucinated": {V1: 0.6}}, R),
        ({"caution": {V1: 7.0}}, R),  # refuses everything more readily: no knowledge
        ({"caution": {STANDARD: 7.0}, "hallucinated": {V1: 0.2}}, S),
        ({"hallucinated": {V1: 0.2}, "learned": {STANDARD: 0.6}}, I),
        ({"hallucinated": {STANDARD: 0.05, V1: 0.0}}, I),
        ({"hallucinated": {V1: 0.2}, "noise": 0.02}, I),
    ],
)
def test_caution_is_no_knowledge(planted, verdict, judged):
    assert found(judged(10, **planted)) == [verdict]


@pytest.mark.parametrize(
    ("by_order", "learned", "expected"),
    [
        ({"standard": 0.4}, {}, [S, S]),
        ({"standard": 0.4, "V1": 0.4}, {}, [R, S]),
        ({"standard": 0.45, "V1": 0.4}, {}, [R, S]),
        ({"standard": 0.4, "foreign noise": 0.4}, {}, [S, R]),
        ({"V1": 0.4}, {}, [I, I]),  # no room: the order does not matter to standard attention
        ({}, {}, [I, I]),
        ({"standard": 0.4}, {"V1": 0.6}, [I, I]),
        ({"standard": 0.4}, {"foreign noise": 0.6}, [S, I]),
    ],
)
def test_the_spread_over_orders(by_order, learned, expected, judged):
    """All orders of an arm give 0.7, but for one."""
    at = {(arm, ORDERS[3].name): level for arm, level in by_order.items()}
    assert found(judged(16, at=at, learned=learned)) == expected


NEAR = {cell: 0.9 for cell in AXES.cells if cell[1] == "near"}


def test_errors_at_random_are_no_sensitivity_to_order(monkeypatch):
    """A model with fewer errors has a smaller spread, but not a smaller ratio."""
    for right in (0.6, 0.9):
        answers = np.random.default_rng(0).random((8, 5000)) < right
        monkeypatch.setattr(e16_order, "by_order", lambda model, found=answers * 1.0: found)
        assert e16_order.spread(None).mean() == pytest.approx(
            1 - right**8 - (1 - right) ** 8, abs=0.02
        )
        assert e16_order.sensitivity(None) == pytest.approx(1, abs=0.03)
    same = np.tile(np.arange(5000) < 3000, (8, 1)).astype(float)  # the order decides nothing
    monkeypatch.setattr(e16_order, "by_order", lambda model: same)
    assert e16_order.sensitivity(None) == 0


LONG = {cell: 0.9 for cell in AXES.cells if cell[0] == 2.0}
ALL = dict.fromkeys(AXES.cells, 0.9)


@pytest.mark.parametrize(
    ("v1", "others", "expected"),
    [
        # by noise, V1 - foreign noise; V1; by length, top-k - V1; V1; V1 by noise, the same;
        # overall, signed mask - V1; foreign noise - V1
        ({}, {}, [R, R, S, R, S, S, S]),
        (NEAR, {}, [S, S, S, R, R, R, R]),
        (NEAR, {"foreign noise": NEAR}, [R, S, S, R, R, R, S]),
        (NEAR, {"foreign noise": NEAR, "signed mask": NEAR}, [R, S, S, R, R, S, S]),
        (LONG, {}, [R, R, R, S, S, R, R]),
        (LONG, {"top-k, k = 16": LONG}, [R, R, S, S, S, R, R]),
        (ALL, {"signed mask": ALL, "foreign noise": ALL}, [R, R, S, R, S, S, S]),
        ({}, {"foreign noise": NEAR}, [R, R, S, R, S, S, S]),
    ],
)
def test_the_full_grid(v1, others, expected, judged):
    assert found(judged(23, gain=v1, gains=others, slope=1.5)) == expected


def test_the_gates_of_the_full_grid(judged):
    gated = partial(judged, 23, gain=NEAR)
    assert found(gated(loss=0.15)) == [I] * 7  # no room
    only = [
        I,
        I,
        I,
        I,
        I,
        R,
        R,
    ]  # losses grow with nothing: there is nothing that V1 could gain more
    assert found(gated()) == only
    assert found(gated(slope=1.5, noise=0.02)) == [I, I, S, R, I, R, R]
    assert found(gated(slope=1.5, learned={"foreign noise": 0.6})) == [I, S, S, R, R, R, I]
    assert found(gated(slope=1.5, learned={"signed mask": 0.6})) == [S, S, S, R, R, I, R]
    assert found(gated(slope=1.5, learned={"V1": 0.6})) == [I] * 7


def test_a_penalty_that_does_not_lower_the_rank_says_nothing(judged):
    both = ("V1", "V1 with a rank penalty")
    assert found(judged(26, full_rank=both)) == [I, S, R, I]
    assert found(judged(26, full_rank=("V1",))) == [S, S, R, R]


def test_a_random_map_that_shares_the_noise_is_no_control(judged):
    assert found(judged(27, maps_of={"random noise": "own"})) == [R, S]
    common = judged(27, maps_of={"random noise": "common"})
    assert found(common) == [I, I]
    assert "manipulation FAILED: corr(log A1, log A2) on I: random noise" in str(
        common[0].failed[0]
    )


@pytest.mark.parametrize(
    ("planted", "expected"),
    [
        ({"retrieving": "common"}, [S, S]),  # in the output; beyond another example's A2
        ({"retrieving": "own"}, [R, R]),
        ({"retrieving": "plain"}, [R, R]),
        ({"elsewhere": "common"}, [R, R]),  # where heads do not retrieve, it does not count
        ({"retrieving": "common", "noise": 0.02}, [I, I]),
        ({"retrieving": "common", "learned": {"V1": 0.6}}, [I, I]),
    ],
)
def test_noise_in_the_output_of_heads(planted, expected, judged):
    assert found(judged(28, **planted), 1, 2) == expected


@pytest.mark.parametrize(
    ("planted", "verdict"),
    [
        ({"retrieving": "sharp"}, S),
        ({}, R),
        ({"elsewhere": "sharp"}, R),
        ({"retrieving": "sharp", "noise": 0.02}, I),
        ({"retrieving": "sharp", "learned": {"standard": 0.6}}, I),
    ],
)
def test_entropy_of_the_maps(planted, verdict, judged):
    assert found(judged(28, **planted), 0) == [verdict]


@pytest.mark.parametrize("number", [2, 10, 16, 17, 24, 25, 26, 27])
def test_without_attention_noise_cancelling_is_not_judged(number, monkeypatch):
    result = measure(number, World(noise=0.02, full_rank=("V1",)), monkeypatch)
    pairs = zip(result.predictions, result.judgements(), strict=True)
    failed = {p.reading: [gate.gate.kind for gate in j.failed] for p, j in pairs}
    assert "noise" in failed.pop("cancelling")
    assert not any("noise" in kinds for kinds in failed.values())
