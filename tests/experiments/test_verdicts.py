"""Verdicts follow from intervals, and intervals from seeds and examples."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphase.analysis.statistics import Interval, bootstrap, difference, student_t
from antiphase.experiments.results import Result
from antiphase.experiments.verdicts import (
    Effect,
    Prediction,
    UnmeasuredEffectError,
    Verdict,
    overall,
)

number = st.floats(-10, 10, allow_nan=False)
size = st.floats(0.01, 5)
EFFECT = Effect("accuracy", "V1", versus="standard", condition="under stress")


@st.composite
def intervals(draw):
    low, mean, high = sorted(draw(st.tuples(number, number, number)))
    return Interval(mean, low, high, 3)


def prediction(expects, counts):
    return Prediction("cancelling", EFFECT, expects, counts, "")


@given(intervals(), size, st.sampled_from(["above", "below"]))
def test_a_difference_is_never_supported_when_zero_is_possible(interval, counts, expects):
    verdict = prediction(expects, counts).judge(interval)
    if interval.low <= 0 <= interval.high:
        assert verdict is Verdict.UNDECIDED
    if verdict is Verdict.SUPPORTED:
        assert (interval.mean >= counts) if expects == "above" else (interval.mean <= -counts)
    if verdict is Verdict.REFUTED:
        assert not interval.covers_zero


@pytest.mark.parametrize(
    ("expects", "counts", "message"),
    [
        ("Above", 0.1, "expects: got 'Above', allowed are above, below, equal"),
        ("above", float("nan"), "counts: got nan"),
        ("above", 0.0, "counts: got 0.0"),
    ],
)
def test_a_prediction_is_validated(expects, counts, message):
    with pytest.raises(ValueError, match=message):
        prediction(expects, counts)


@given(intervals(), size)
def test_an_equality_is_supported_only_inside_the_effect_size(interval, counts):
    verdict = prediction("equal", counts).judge(interval)
    inside = -counts < interval.low and interval.high < counts
    assert (verdict is Verdict.SUPPORTED) == inside


@given(intervals(), size)
def test_opposite_predictions_are_never_both_supported(interval, counts):
    found = [prediction(e, counts).judge(interval) for e in ("above", "below", "equal")]
    assert found.count(Verdict.SUPPORTED) <= 1


@given(intervals(), size)
def test_above_and_below_mirror_each_other(interval, counts):
    mirrored = Interval(-interval.mean, -interval.high, -interval.low, 3)
    assert prediction("above", counts).judge(interval) is prediction("below", counts).judge(
        mirrored
    )


@pytest.mark.parametrize(
    ("low", "mean", "high", "verdict"),
    [
        (0.2, 0.3, 0.4, "supported"),
        (0.01, 0.05, 0.09, "refuted"),  # real, and too small to count
        (0.01, 0.05, 0.3, "undecided"),
        (-0.4, -0.3, -0.2, "refuted"),
        (-0.1, 0.3, 0.6, "undecided"),
    ],
)
def test_verdicts_by_hand(low, mean, high, verdict):
    assert prediction("above", 0.1).judge(Interval(mean, low, high, 3)).value == verdict


def test_what_never_ran_says_so():
    assert prediction("above", 1).judge(None) is Verdict.NOT_RUN
    assert overall([Verdict.NOT_RUN]) is Verdict.NOT_RUN
    assert overall([Verdict.SUPPORTED, Verdict.NOT_RUN]) is Verdict.UNDECIDED
    assert overall([Verdict.SUPPORTED, Verdict.SUPPORTED]) is Verdict.SUPPORTED
    assert overall([Verdict.SUPPORTED, Verdict.REFUTED]) is Verdict.REFUTED


def test_a_prediction_names_a_reading_and_a_size():
    with pytest.raises(ValueError, match="reading: got 'magic', allowed are cancelling"):
        Prediction("magic", EFFECT, "above", 1.0, "")
    with pytest.raises(ValueError, match="expected an effect size above 0"):
        Prediction("sparsity", EFFECT, "above", 0.0, "")
    with pytest.raises(TypeError, match="expected an Effect"):
        Prediction("sparsity", "accuracy of V1", "above", 1.0, "")


def test_an_effect_reads_as_a_phrase():
    assert str(EFFECT) == "accuracy: V1 minus standard, under stress"
    assert str(Effect("negative mass", "V1")) == "negative mass: V1"


def test_a_prediction_without_its_effect_raises_unless_the_test_was_not_run():
    other = Effect("accuracy", "V1", versus="standard", condition="as trained")
    found = {other: Interval(0.5, 0.4, 0.6, 3)}
    result = Result(7, "Grid", "?", [prediction("above", 0.1)], found)
    with pytest.raises(UnmeasuredEffectError, match=r"test 7 \(Grid\).*\n.*under stress") as error:
        result.verdicts()
    assert "as trained" in str(error.value)  # what was measured
    assert Result(7, "Grid", "?", [prediction("above", 0.1)], why_not="x").verdicts() == [
        Verdict.NOT_RUN
    ]


def test_seeds_widen_the_interval_more_than_examples():
    random = np.random.default_rng(0)
    alike = [random.normal(1.0, 1.0, 400) for _ in range(3)]
    apart = [random.normal(m, 1.0, 400) for m in (0.0, 1.0, 2.0)]
    narrow, wide = bootstrap(alike), bootstrap(apart)
    assert 0.08 < narrow.high - narrow.low < 0.25
    assert wide.high - wide.low > 1.0
    assert narrow.mean == pytest.approx(np.mean([v.mean() for v in alike]))
    assert bootstrap(alike) == narrow  # the same every time


def test_an_interval_covers_the_truth_about_as_often_as_it_says():
    """Examples only (one seed): 95% of 200 intervals, give or take."""
    random = np.random.default_rng(1)
    hits = 0
    for _ in range(200):
        found = bootstrap([random.normal(0.5, 1.0, 60)])
        hits += found.low <= 0.5 <= found.high
    assert 175 <= hits <= 199


def test_pairs_must_match():
    assert difference([np.ones(3)], [np.zeros(3)])[0].tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match="the same examples on both sides"):
        difference([np.ones(3)], [np.zeros(4)])
    with pytest.raises(ValueError, match="not finite"):
        bootstrap([np.array([np.nan])])
    with pytest.raises(ValueError, match="expected some"):
        bootstrap([])


def test_student_t_by_hand():
    found = student_t([1.0, 2.0, 3.0])
    assert (found.mean, found.seeds, found.by_seed) == (2.0, 3, (1.0, 2.0, 3.0))
    assert found.high - found.mean == pytest.approx(4.303 / np.sqrt(3))
    assert found.mean - found.low == pytest.approx(4.303 / np.sqrt(3))
    assert found.plus_minus() == "2 ± 2.5"
    alone = student_t([0.5])
    assert np.isnan(alone.low)
    assert alone.plus_minus() == "0.5"
