"""The coverage that docs/verdicts.md states is what its script prints."""

import numpy as np
import pytest

from antiphase.analysis.statistics import student_t
from tests.docs.pages import script, text


@pytest.fixture(scope="module")
def simulation():
    return script("coverage")


@pytest.mark.parametrize("seeds", [3, 5, 8])
def test_the_t_interval_covers_95_percent_of_normal_effects(simulation, seeds):
    found = simulation.coverage(simulation.normal, simulation.t_interval, seeds)
    assert abs(found - 0.95) < 0.02


def test_it_is_the_interval_of_the_lab(simulation):
    values = np.random.default_rng(2).normal(size=(4, 5))
    for row, low, high in zip(values, *simulation.t_interval(values), strict=True):
        found = student_t(row.tolist())
        assert (found.low, found.high) == pytest.approx((low, high))


def test_the_committed_table_is_current(simulation):
    assert simulation.table() in text("docs/verdicts.md"), "run python docs/coverage.py"
