"""Intervals, p-values and tests over seeds, beside numbers worked out by hand or by scipy."""

import math

import numpy as np
import pytest
from scipy import stats

from antiphase.analysis.statistics import (
    CensoredSteps,
    difference,
    example_interval,
    holm,
    log_rank,
    p_more,
    p_no_worse,
    p_same,
    seed_interval,
    student_t,
)


def test_student_t_by_hand():
    found = student_t([1.0, 2.0, 3.0])
    assert (found.mean, found.seeds, found.by_seed) == (2.0, 3, (1.0, 2.0, 3.0))
    assert found.high - found.mean == pytest.approx(4.302653 / np.sqrt(3))
    assert found.mean - found.low == pytest.approx(4.302653 / np.sqrt(3))
    assert found.plus_minus() == "2 ± 2.5"
    alone = student_t([0.5])
    assert np.isnan(alone.low)
    assert alone.plus_minus() == str(alone) == "0.5"


def test_quantiles_are_exact_for_any_number_of_seeds():
    values = np.random.default_rng(0).normal(size=40)
    found = student_t(values.tolist())
    low, high = stats.t.interval(0.95, 39, values.mean(), stats.sem(values))
    assert (found.low, found.high) == pytest.approx((low, high))


def test_only_the_means_of_seeds_count():
    seeds = [np.array([0.0, 2.0]), np.array([2.0]), np.array([3.0, 3.0, 3.0])]
    assert seed_interval(seeds) == student_t([1.0, 2.0, 3.0])


def test_the_interval_of_one_model_is_over_its_examples():
    random = np.random.default_rng(1)
    found = [example_interval(random.normal(0.5, 1.0, 60)) for _ in range(200)]
    assert 180 <= sum(f.low <= 0.5 <= f.high for f in found) <= 199
    assert {(f.seeds, f.by_seed) for f in found} == {(1, None)}


def test_identical_seeds_give_an_interval_without_width():
    found = student_t([0.1] * 7)
    assert (found.low, found.mean, found.high) == (0.1, 0.1, 0.1)
    assert (p_more([0.1] * 7), p_more([0.0] * 7), p_more([-0.1] * 7)) == (0.0, 1.0, 1.0)
    assert (p_same([0.1] * 7, 0.2), p_same([0.1] * 7, 0.05)) == (0.0, 1.0)
    assert (p_no_worse([-0.1] * 7, 0.2), p_no_worse([-0.3] * 7, 0.2)) == (0.0, 1.0)


def test_values_must_be_there_finite_and_paired():
    assert difference([np.ones(3)], [np.zeros(3)])[0].tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match="the same examples on both sides"):
        difference([np.ones(3)], [np.zeros(4)])
    with pytest.raises(ValueError, match="not finite"):
        seed_interval([np.array([np.nan])])
    with pytest.raises(ValueError, match="got no values"):
        seed_interval([np.array([1.0]), np.array([])])
    with pytest.raises(ValueError, match="got no values"):
        seed_interval([])
    with pytest.raises(ValueError, match="got 1 seeds, expected at least 2"):
        p_more([1.0])


def test_p_values_are_those_of_scipy():
    values = [0.02, 0.05, -0.01, 0.03, 0.04]
    tests = {name: {"alternative": name} for name in ("greater", "less")}
    assert p_more(values) == pytest.approx(stats.ttest_1samp(values, 0, **tests["greater"]).pvalue)
    above = stats.ttest_1samp(values, -0.06, **tests["greater"]).pvalue
    below = stats.ttest_1samp(values, 0.06, **tests["less"]).pvalue
    assert p_no_worse(values, 0.06) == pytest.approx(above)
    assert p_same(values, 0.06) == pytest.approx(max(above, below))


def test_equivalence_needs_a_narrow_interval_and_a_small_mean():
    narrow, wide, far = [0.001, -0.001, 0.002, 0.0, -0.002], [0.1, -0.1, 0.2, 0.0, -0.2], [0.1] * 5
    assert p_same(narrow, 0.02) < 0.001
    assert p_same(wide, 0.02) > 0.3
    assert p_same(far, 0.02) == 1
    assert p_same(narrow, 0.02) == p_same([-v for v in narrow], 0.02)


def test_holm_by_hand():
    # sorted: 0.005 * 4, 0.01 * 3, 0.03 * 2, 0.04 * 1 which may not fall below the one before
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_log_rank_of_a_textbook():
    """Freireich et al. 1963, weeks of remission: chi-square 16.79 on one degree of freedom."""
    treated = [6, 6, 6, 7, 10, 13, 16, 22, 23, 6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35]
    placebo = [1, 1, 2, 2, 3, 4, 4, 5, 5, 8, 8, 8, 8, 11, 11, 12, 12, 15, 17, 22, 23]
    one = CensoredSteps(tuple(treated), (True,) * 9 + (False,) * 12)
    other = CensoredSteps(tuple(placebo), (True,) * 21)
    p = log_rank(one, other)
    assert p == pytest.approx(stats.chi2.sf(16.79, 1), rel=0.01)
    assert log_rank(other, one) == pytest.approx(p)
    assert other.median == 8


def test_log_rank_where_no_run_reached_the_criterion():
    never = CensoredSteps((700,) * 5, (False,) * 5)
    always = CensoredSteps((100, 120, 130, 140, 150), (True,) * 5)
    assert log_rank(never, never) == 1
    assert log_rank(always, never) < 0.01
    assert log_rank(always, always) == 1
    assert never.median is None
    assert always.median == 130
    half = CensoredSteps((300, 700, 200, 700), (True, False, True, False))
    assert half.median == 300
    assert CensoredSteps((300, 700, 700), (True, False, False)).median is None
    with pytest.raises(ValueError, match="got 2 steps and 1 marks"):
        CensoredSteps((1, 2), (True,))
    assert not math.isnan(log_rank(CensoredSteps((5,), (True,)), CensoredSteps((5,), (True,))))
