"""Verdicts follow from gates, the number of seeds and intervals: planted answers come out."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphase.analysis.statistics import Interval, student_t
from antiphase.experiments.lock import new_lock
from antiphase.experiments.registry import EXPERIMENTS, RegisteredTest
from antiphase.experiments.results import Result, Study, load_study
from antiphase.experiments.verdicts import (
    AS_TRAINED,
    Effect,
    Gate,
    Prediction,
    UnmeasuredEffectError,
    Verdict,
    learned,
    manipulation,
    noise,
    require_one_primary,
    room,
)

number = st.floats(-10, 10, allow_nan=False)
sizes = st.floats(0.01, 5)
EFFECT = Effect("accuracy", "V1", versus="standard", condition="under stress")
ROOM = Effect("1 - accuracy", "standard", condition="under stress")
GATES = (learned("V1"), learned("standard"), room(ROOM, 0.02), noise("under stress"))


@st.composite
def intervals(draw):
    low, mean, high = sorted(draw(st.tuples(number, number, number)))
    return Interval(mean, low, high, 8)


def prediction(kind="more", size=0.02, **changes):
    return Prediction("cancelling", EFFECT, kind, size, "", **changes)


def verdict(interval, kind, size):
    return prediction(kind, size).judge({EFFECT: interval}).verdict


def around(mean, spread=0.002, seeds=8):
    """Return an interval over seeds that lie evenly around a mean."""
    return student_t((mean + spread * np.linspace(-1, 1, seeds)).tolist())


def study_of_one(effect, **gates):
    """Return measured effects where every gate passes, except for the changes."""
    means = {"V1": 0.999, "standard": 0.995, "room": 0.2, "noise": 0.4} | gates
    keys = [gate.effect for gate in GATES]
    return {EFFECT: effect} | {
        key: around(mean, 0.0001) for key, mean in zip(keys, means.values(), strict=True)
    }


@pytest.mark.parametrize(
    ("mean", "more", "same", "no_worse"),
    [
        (0.05, "supported", "refuted", "supported"),  # better
        (0.0, "refuted", "supported", "supported"),  # a precise null refutes `more`
        (0.01, "refuted", "supported", "supported"),  # real, and too small to count
        (-0.05, "refuted", "refuted", "refuted"),  # worse
        (0.02, "supported", "undecided", "supported"),  # at the size itself
        (-0.02, "refuted", "undecided", "undecided"),
    ],
)
def test_planted_answers(mean, more, same, no_worse):
    kinds = {"more": more, "same": same, "no worse": no_worse}
    measured = study_of_one(around(mean))
    found = {k: prediction(k, gates=GATES).judge(measured).verdict.value for k in kinds}
    assert found == kinds


def test_a_wide_interval_decides_nothing():
    for kind in ("more", "same", "no worse"):
        assert verdict(around(0.01, spread=0.5), kind, 0.02) is Verdict.UNDECIDED


@pytest.mark.parametrize(
    ("gate", "mean", "words"),
    [
        ("V1", 0.45, "learned FAILED: accuracy: V1, as trained = 0.45 (≥ 0.99)"),
        ("standard", 0.98, "learned FAILED: accuracy: standard, as trained = 0.98 (≥ 0.99)"),
        ("room", 0.03, "room FAILED: 1 - accuracy: standard, under stress = 0.03 (≥ 0.04)"),
        ("noise", 0.002, "standard, under stress = 0.002 (0.2 to 0.6)"),
        ("noise", 0.7, "standard, under stress = 0.7 (0.2 to 0.6)"),
    ],
)
def test_a_failed_gate_makes_it_invalid_and_gives_its_number(gate, mean, words):
    found = prediction(gates=GATES).judge(study_of_one(around(0.05), **{gate: mean}))
    assert (found.verdict, found.p) == (Verdict.INVALID, None)
    assert [words in str(failed) for failed in found.failed] == [True]
    assert [checked.gate for checked in found.gates] == list(GATES)


def test_a_seed_that_fails_counts_in_the_gate():
    """Seven seeds at 1 and one at 0.5: a mean of 0.94 is not learned; none is dropped."""
    measured = study_of_one(around(0.05))
    measured[learned("V1").effect] = student_t([1.0] * 7 + [0.5])
    assert prediction(gates=GATES).judge(measured).verdict is Verdict.INVALID


def test_fewer_than_five_seeds_are_descriptive():
    found = prediction().judge({EFFECT: around(0.05, seeds=4)})
    assert (found.verdict, found.p) == (Verdict.DESCRIPTIVE, None)
    assert prediction().judge({EFFECT: around(0.05, seeds=5)}).verdict is Verdict.SUPPORTED
    # a gate that fails comes first
    few = study_of_one(around(0.05, seeds=4), V1=0.3)
    assert prediction(gates=GATES).judge(few).verdict is Verdict.INVALID


def test_a_test_that_was_not_run_says_so():
    found = prediction(gates=GATES).judge(None)
    assert (found.verdict, found.gates, found.p) == (Verdict.NOT_RUN, (), None)


def test_p_belongs_to_the_kind():
    measured = {EFFECT: around(0.01, spread=0.02)}
    p = {kind: prediction(kind).judge(measured).p for kind in ("more", "same", "no worse")}
    assert p["no worse"] < p["more"]
    assert p["no worse"] < p["same"]
    by_hand = student_t(measured[EFFECT].by_seed)
    assert (p["more"] < 0.025) == (by_hand.low > 0)


@given(intervals(), sizes)
def test_supported_and_refuted_are_what_the_rules_say(interval, size):
    low, mean, high = interval.low, interval.mean, interval.high
    rules = {
        "more": (low > 0 and mean >= size, high < size),
        "same": (-size < low and high < size, low > size or high < -size),
        "no worse": (low > -size, high < -size),
    }
    for kind, (supported, refuted) in rules.items():
        found = verdict(interval, kind, size)
        assert not (supported and refuted)
        assert (found is Verdict.SUPPORTED, found is Verdict.REFUTED) == (supported, refuted)


@given(intervals(), sizes)
def test_what_is_more_is_no_worse_and_never_the_same(interval, size):
    found = {kind: verdict(interval, kind, size) for kind in ("more", "same", "no worse")}
    if Verdict.SUPPORTED in (found["more"], found["same"]):
        assert found["no worse"] is Verdict.SUPPORTED
    assert not found["more"] is found["same"] is Verdict.SUPPORTED


def test_mistyped_words_raise():
    with pytest.raises(ValueError, match="kind: got 'More', allowed are more, same, no worse"):
        prediction("More")
    with pytest.raises(ValueError, match="reading: got 'magic', allowed are cancelling"):
        Prediction("magic", EFFECT, "more", 1.0, "")
    with pytest.raises(ValueError, match="gate: got 'lerned', allowed are learned, room, noise"):
        Gate("lerned", EFFECT, low=0)
    with pytest.raises(TypeError, match="expected an Effect"):
        Prediction("sparsity", "accuracy of V1", "more", 1.0, "")
    with pytest.raises(TypeError, match="expected an Effect"):
        manipulation("lam", 0.05)
    for size in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="expected an effect size above 0"):
            prediction(size=size)
    for low, high in ((1.0, 0.0), (-math.inf, math.inf), (math.nan, 1.0)):
        with pytest.raises(ValueError, match="expected low <= high"):
            Gate("noise", EFFECT, low, high)


def test_an_effect_that_was_not_measured_raises():
    other = Effect("accuracy", "V1", versus="standard", condition=AS_TRAINED)
    result = Result(7, "Grid", "?", [prediction(primary=True)], {other: around(0.5)})
    with pytest.raises(UnmeasuredEffectError, match=r"test 7 \(Grid\).*\n.*under stress") as error:
        result.judgements()
    assert "as trained" in str(error.value)  # what was measured
    gated = prediction(gates=(manipulation(Effect("norm of lam W_D O", "dex"), 0.05),))
    with pytest.raises(UnmeasuredEffectError, match=r"a gate of a prediction.*\n.*lam W_D O"):
        gated.judge({EFFECT: around(0.5)})
    result.why_not = "not selected"
    assert [judgement.verdict for judgement in result.judgements()] == [Verdict.NOT_RUN]


def test_what_is_predicted_reads_as_words():
    assert str(EFFECT) == "accuracy: V1 minus standard, under stress"
    assert str(Effect("negative mass", "V1")) == "negative mass: V1"
    bounds = [prediction(kind).bound for kind in ("more", "same", "no worse")]
    assert bounds == ["more than 0, at least 0.02", "within ±0.02", "no worse than -0.02"]
    assert Gate("room", EFFECT, high=0.5).bound == "≤ 0.5"


def test_each_reading_has_exactly_one_primary_prediction():
    one, other = prediction(primary=True), prediction("same")
    require_one_primary("7", [one, other])
    for wrong, count in (([other], 0), ([one, one], 2)):
        with pytest.raises(ValueError, match=f"'cancelling' has {count} primary predictions"):
            require_one_primary("7", wrong)


def test_a_test_without_a_primary_prediction_does_not_load(monkeypatch):
    kind = type(EXPERIMENTS[1].load())
    monkeypatch.setattr(kind, "predictions", kind.predictions[1:])
    with pytest.raises(ValueError, match=r"test 1 \(Agreement\): 'cancelling' has 0 primary"):
        EXPERIMENTS[1].load()


@pytest.mark.parametrize("test", EXPERIMENTS.values(), ids=lambda test: test.title)
def test_a_contest_between_arms_has_gates_for_both(test: RegisteredTest):
    if test.text:
        pytest.skip("models of text have no accuracy to learn")
    experiment = test.load()
    names = {arm.name for arm in experiment.arms}
    for p in experiment.predictions:
        if p.effect.arm in names and p.effect.versus in names:
            gated = {gate.effect.arm for gate in p.gates if gate.kind == "learned"}
            assert {p.effect.arm, p.effect.versus} <= gated
            if test.number != 5:  # locked without; its verdict on the Gini index is void
                assert "room" in {gate.kind for gate in p.gates}


def study_with(results):
    mine = {"study_id": "first", "seeds": [*range(8)]}
    return Study(
        [replace(result, **mine) for result in results],
        [],
        [],
        {},
        {},
        study_id="first",
        seeds=list(range(8)),
        lock=new_lock("first", range(8), {r.number: r.predictions for r in results}, {}),
    )


def test_the_verdict_of_a_test_is_that_of_its_primary_prediction(tmp_path):
    low = Effect("loss", "V1")
    second = Prediction("cancelling", low, "more", 0.02, "")
    measured = study_of_one(around(0.05)) | {low: around(-0.5)}
    result = Result(7, "Grid", "?", [second, prediction(gates=GATES, primary=True)], measured)
    assert [j.verdict.value for j in result.judgements()] == ["refuted", "supported"]
    assert result.about("cancelling") is Verdict.SUPPORTED
    assert result.about("sparsity") is None
    study = study_with([result])
    study.save(tmp_path)
    again = load_study(tmp_path)
    assert again == study
    assert again.results[0].judgements() == result.judgements()


def test_holm_is_over_all_primary_predictions_of_the_lock():
    means = {1: 0.05, 2: 0.004, 3: 0.0, 4: 0.05}
    results = []
    for test, mean in means.items():
        predictions = [prediction(gates=GATES, primary=True), prediction("same", gates=GATES)]
        gates = {"V1": 0.2} if test == 4 else {}  # invalid
        effect = around(mean, spread=0.01)
        results.append(Result(test, "", "", predictions, study_of_one(effect, **gates)))
    results.append(Result(5, "", "", [prediction(primary=True)], why_not="not selected"))
    p = {r.number: r.judgements()[0].p for r in results}
    assert p[4] is p[5] is None
    study = study_with(results)
    adjusted = study.adjusted_p()
    assert list(adjusted) == [(n, "cancelling") for n in (1, 2, 3)]
    # the invalid one and the one that was not run count with p = 1
    assert adjusted[1, "cancelling"] == pytest.approx(5 * p[1])
    assert adjusted[2, "cancelling"] == pytest.approx(4 * p[2])
    assert adjusted[3, "cancelling"] == pytest.approx(min(1.0, 3 * p[3]))
    # so does one that was run with other seeds
    other = [replace(r, seeds=[9]) if r.number == 1 else r for r in study.results]
    assert list(replace(study, results=other).adjusted_p()) == [(n, "cancelling") for n in (2, 3)]
    # without a lock the family is what was run
    unlocked = replace(study, lock=None).adjusted_p()
    assert unlocked[1, "cancelling"] == pytest.approx(4 * p[1])


def test_a_study_that_differs_from_its_lock_is_not_shown(tmp_path):
    result = Result(7, "Grid", "?", [prediction(primary=True)], study_of_one(around(0.05)))
    study = study_with([result])
    smaller = [replace(study.results[0], predictions=[prediction(size=0.01, primary=True)])]
    for changed, why in (
        (replace(study, lock=study.lock | {"digest": "0" * 64}), "its digest is not that of"),
        (replace(study, results=smaller), "has other predictions of test 7"),
    ):
        changed.save(tmp_path)
        with pytest.raises(ValueError, match=f"results.json: .*{why}"):
            load_study(tmp_path)
    study.save(tmp_path)
    assert load_study(tmp_path) == study
