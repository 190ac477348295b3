"""The complete path from a model's answers and maps to a verdict, where the answer is known.

What models answer, attend to and lose is planted (`planted.py`); everything after that is the lab's
own: retrieval heads, metrics, gates, intervals, verdicts.
"""

from functools import partial

import pytest

from antiphase.experiments import e15_layers
from antiphase.experiments.arms import is_standard
from antiphase.experiments.conditions import GRID, STRESS
from antiphase.experiments.registry import EXPERIMENTS
from tests.experiments.planted import (
    H,
    I,
    R,
    S,
    World,
    measure,
    verdicts,
)


@pytest.fixture
def measured(monkeypatch):
    """Return a function from the number of a test and a world to the test's result."""
    return partial(measure, monkeypatch=monkeypatch)


BETTER, WORSE = 0.85, 0.55  # than 0.7, which all arms have by default


@pytest.mark.parametrize(
    ("number", "stress", "expected"),
    [
        (4, {"top-k": BETTER}, {"sparsity": S, "cancelling": R}),
        (4, {}, {"sparsity": S, "cancelling": R}),  # a precise null refutes `more`
        (4, {"top-k": WORSE}, {"sparsity": R, "cancelling": S}),
        (6, {}, {"cancelling": R, "sparsity": S, "unchaining": R}),
        (6, {"foreign noise": WORSE}, {"cancelling": S, "sparsity": S, "unchaining": R}),
        (6, {"foreign noise": BETTER}, {"cancelling": R}),
        (6, {"simplex": WORSE}, {"cancelling": R, "sparsity": R, "unchaining": S}),
        (6, {"simplex": BETTER}, {"sparsity": S, "unchaining": R}),
        (8, {}, {"cancelling": R, "unchaining": R}),
        (8, {"V1": BETTER, "V1 without head norm": BETTER}, {"cancelling": S, "unchaining": S}),
        (8, {"V1": BETTER, "standard + head norm": BETTER}, {"cancelling": R, "unchaining": R}),
        (8, {"V1": BETTER}, {"cancelling": S, "unchaining": R}),  # 0.075 on average
        (8, {"V1": BETTER, "V1 without head norm": WORSE}, {"cancelling": R, "unchaining": R}),
        (8, {"standard": 0.95}, {"cancelling": I, "unchaining": I}),  # no room
        (8, {"standard + head norm": 0.95}, {"cancelling": I, "unchaining": R}),
        (12, {"gated": BETTER}, {"unchaining": S, "cancelling": R}),
        (12, {}, {"unchaining": S, "cancelling": R}),
        (12, {"gated": WORSE}, {"unchaining": R, "cancelling": S}),
        (13, {"low-rank noise": BETTER}, {"unchaining": S}),
        (13, {}, {"unchaining": S}),
        (13, {"low-rank noise": WORSE}, {"unchaining": R}),
    ],
)
def test_contests(number, stress, expected, measured):
    assert verdicts(measured(number, World(stress=stress)), expected) == expected


CONTESTS = {  # the number of predictions about two arms in one condition
    2: 2, 4: 2, 6: 9, 8: 2, 9: 1, 12: 2, 13: 1, 17: 5, 18: 3, 24: 6, 25: 6, 26: 4, 27: 2
}  # fmt: skip


@pytest.mark.parametrize("number", CONTESTS)
def test_every_contest_follows_its_two_arms(number, measured):
    """Better, same, worse; not learned by either; no room: each prediction about two arms."""
    test = EXPERIMENTS[number].load()
    kinds = {"more": (S, R, R), "no worse": (S, S, R)}
    names = {condition.name for condition in test.conditions}
    contests = [
        i
        for i, p in enumerate(test.predictions)
        if p.effect.metric == "accuracy" and p.effect.versus and p.effect.condition in names
    ]
    assert len(contests) == CONTESTS[number]
    standard = next(arm.name for arm in test.arms if is_standard(arm))
    known = {}

    def judged(**planted):
        """Return the judgement on prediction i; predictions share worlds."""
        if str(planted) not in known:
            world = World(full_rank=("V1",), retrieving="own", **planted)
            known[str(planted)] = measured(number, world).judgements()
        return known[str(planted)][i]

    for i in contests:
        p = test.predictions[i]
        one, other = p.effect.arm, p.effect.versus
        worlds = ({one: BETTER}, {}, {one: WORSE})
        found = [judged(stress=stress).verdict for stress in worlds]
        assert found == list(kinds[p.kind]), (one, other)
        for arm in (one, other):
            unlearned = judged(learned={arm: 0.6})
            assert unlearned.verdict is I
            assert f"learned FAILED: accuracy: {arm}, as trained = 0.6" in str(unlearned.failed[0])
        # a gain needs room above the other arm; no worse needs a task that is hard for standard
        baseline = other if p.kind == "more" else standard
        full = judged(stress={one: 0.95, baseline: 0.95})
        assert full.verdict is I
        assert f"room FAILED: 1 - accuracy: {baseline}" in str(full.failed[0])


def test_one_unlearned_control_does_not_void_the_others(measured):
    result = measured(6, World(learned={"signed mask": 0.3}, stress={"foreign noise": WORSE}))
    about_mask = {
        judgement.verdict
        for p, judgement in zip(result.predictions, result.judgements(), strict=True)
        if "signed mask" in (p.effect.arm, p.effect.versus)
    }
    assert about_mask == {I}
    assert verdicts(result, {"cancelling": S, "sparsity": S}) == {"cancelling": S, "sparsity": S}


@pytest.mark.parametrize(("full_rank", "verdict"), [((), S), (("V1",), R)])
def test_ranks(full_rank, verdict, measured):
    result = measured(13, World(full_rank=full_rank))
    about_rank = [
        judgement.verdict
        for p, judgement in zip(result.predictions, result.judgements(), strict=True)
        if "rank of A2" in p.effect.metric
    ]
    assert about_rank == [verdict]


FAR_1, FAR_2, NEAR_1, NEAR_2 = (1.0, "far"), (1.5, "far"), (1.0, "near"), (1.5, "near")


@pytest.mark.parametrize(
    ("gain", "expected"),
    [
        ({NEAR_1: 0.5, NEAR_2: 0.5}, [S, R, R]),  # cancelling; sparsity by length; and by noise
        ({FAR_2: 0.5, NEAR_2: 0.5}, [R, S, S]),
        ({NEAR_2: 0.5}, [S, S, R]),
        (dict.fromkeys(GRID, 0.5), [R, R, S]),  # a gain that grows with neither
        ({}, [R, R, S]),
        ({NEAR_1: -0.5, NEAR_2: -0.5}, [R, R, R]),
    ],
)
def test_grid(gain, expected, measured):
    judgements = measured(7, World(gain=gain)).judgements()
    assert [judgement.verdict for judgement in judgements] == expected


@pytest.mark.parametrize(
    ("retrieving", "elsewhere", "expected"),
    [
        ("common", "own", [S, S, S, R]),
        ("own", "own", [R, R, R, S]),
        ("own", "common", [R, R, R, S]),  # where heads do not retrieve, it does not count
    ],
)
def test_agreement(retrieving, elsewhere, expected, measured):
    result = measured(1, World(retrieving=retrieving, elsewhere=elsewhere))
    assert [judgement.verdict for judgement in result.judgements()] == expected
    by_layer = {row[0]: row[1:3] for row in result.tables[1].rows}
    assert by_layer["V1, layer 0"] == ["0 of 8", "no retrieval heads"]
    assert by_layer["V1, layer 1"][0] == "8 of 8"


@pytest.mark.parametrize(("before", "common"), [("common", True), ("own", False)])
def test_agreement_over_training_has_its_nulls(before, common, measured):
    lines = measured(1, World(before=before)).figures[0].series
    assert [*lines][:4] == ["V1 on I", "V1 on R", "V2 on I", "V2 on R"]
    first = {name: points[0][1].mean for name, points in lines.items()}
    for null in ("A2 of another head", "A2 of another example"):
        assert (first["V1 on I"] - first[f"V1 on I, {null}"] > 0.1) == common


@pytest.mark.parametrize(
    ("retrieving", "elsewhere", "expected"),
    [
        ("common", "plain", {"cancelling": S, "sparsity": S}),
        ("sharp", "plain", {"cancelling": R, "sparsity": S}),
        ("own", "plain", {"cancelling": R}),
        ("plain", "plain", {"cancelling": R, "sparsity": R}),
        ("plain", "common", {"cancelling": R, "sparsity": R}),
        ("plain", "sharp", {"cancelling": R, "sparsity": R}),
        ("plain", "own", {"cancelling": R, "sparsity": R}),
    ],
)
def test_sparsity(retrieving, elsewhere, expected, measured):
    result = measured(5, World(retrieving=retrieving, elsewhere=elsewhere))
    assert verdicts(result, expected) == expected


NOTHING = [0.0] * H
OTHER = e15_layers.OTHER_EXAMPLE
OUT = {"knocked out": [NOTHING, [1.0, 1.0, 0, 0]]}  # A2 matters in the heads that retrieve


@pytest.mark.parametrize(
    ("drop", "expected"),
    [
        ({OTHER: [NOTHING, [1.0, 1.0, 0, 0]], **OUT}, {"cancelling": S, "sparsity": R}),
        (OUT, {"cancelling": R, "sparsity": S, "unchaining": S}),
        ({OTHER: [NOTHING, [-1.0, -1.0, 0, 0]], **OUT}, {"cancelling": R, "sparsity": R}),
        # in heads and layers that do not retrieve
        ({OTHER: [[9.0] * H, [0, 0, 9.0, 9.0]], **OUT}, {"cancelling": R, "sparsity": S}),
        # where A2 does nothing, that another A2 changes nothing says nothing
        ({}, {"cancelling": R, "sparsity": I, "unchaining": R}),
        ({"knocked out": [[9.0] * H, [0, 0, 9.0, 9.0]]}, {"cancelling": R, "sparsity": I}),
        # all heads of the last layer against those of the first
        ({"knocked out": [NOTHING, [1.0] * H]}, {"cancelling": R, "unchaining": S}),
        ({"knocked out": [[1.0] * H, NOTHING]}, {"unchaining": R}),
    ],
)
def test_layers(drop, expected, measured):
    assert verdicts(measured(15, World(drop=drop)), expected) == expected


PRIMARY = (1, 4, 5, 6, 7, 8, 12, 13, 15)


@pytest.mark.parametrize("number", PRIMARY)
def test_an_arm_that_did_not_learn_voids_what_is_said_about_it(number, measured):
    result = measured(number, World(learned=dict.fromkeys(["V1", "V2"], 0.62)))
    for prediction, judgement in zip(result.predictions, result.judgements(), strict=True):
        arms = {gate.effect.arm for gate in prediction.gates if gate.kind == "learned"}
        assert arms
        assert (judgement.verdict is I) == bool(arms & {"V1", "V2"})
        if judgement.failed:
            assert "as trained = 0.62 (≥ 0.99)" in str(judgement.failed[0])


@pytest.mark.parametrize("noise", [0.02, 0.75])
@pytest.mark.parametrize("number", PRIMARY)
def test_without_attention_noise_tests_of_noise_do_not_speak(number, noise, measured):
    result = measured(number, World(noise=noise))
    gated = [any(g.kind == "noise" for g in p.gates) for p in result.predictions]
    assert any(gated) == (number in (1, 5, 7, 15))
    for judgement, is_gated in zip(result.judgements(), gated, strict=True):
        assert (judgement.verdict is I) == is_gated
        if is_gated:
            words = f"noise FAILED: mass on I, retrieval heads: standard, {STRESS.name} = {noise}"
            assert words in str(judgement.failed[0])


def test_without_room_in_the_loss_the_grid_does_not_speak(measured):
    for judgement in measured(7, World(loss=0.15)).judgements():
        assert judgement.verdict is I
        assert "room FAILED: loss: standard" in str(judgement.failed[0])
