"""Intervals by resampling items."""

import math

import numpy as np
import pytest

from antiphase.evaluation.bootstrap import Estimate, estimate, paired_difference


def mean(rows):
    return float(rows.mean())


def test_the_interval_of_a_mean_is_that_of_the_normal_approximation():
    rows = np.random.default_rng(1).normal(2.0, 1.0, size=(400, 1))
    found = estimate(mean, rows)
    half = 1.96 * rows.std(ddof=1) / math.sqrt(400)
    assert found.value == pytest.approx(rows.mean())
    assert found.low == pytest.approx(rows.mean() - half, abs=0.02)
    assert found.high == pytest.approx(rows.mean() + half, abs=0.02)
    assert found.items == 400


def test_pairing_removes_what_items_share():
    rng = np.random.default_rng(2)
    difficulty = rng.normal(0, 10, size=(100, 1))
    one = difficulty + rng.normal(0, 0.1, size=(100, 1))
    other = difficulty + 0.5 + rng.normal(0, 0.1, size=(100, 1))
    found = paired_difference(mean, one, other)
    assert 0.45 < found.low < found.value < found.high < 0.55
    alone = estimate(mean, other)
    assert alone.high - alone.low > 20 * (found.high - found.low)


def test_two_sides_need_the_same_items():
    with pytest.raises(ValueError, match="the same items"):
        paired_difference(mean, np.zeros((3, 1)), np.zeros((4, 1)))


def test_what_has_no_interval_says_so():
    assert str(estimate(mean, np.array([[0.25]]))) == "0.25"
    assert str(Estimate(math.nan, math.nan, math.nan, 0)) == "-"
    assert math.isnan(estimate(lambda rows: math.nan, np.zeros((5, 1))).value)
