"""Intervals by resampling the items of a benchmark.

They describe ONE model on other items of the same kind. They say nothing about other seeds of its
training.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 1000
Rows = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A number with its 95% interval over items; NaN ends where there is none.

    Attributes:
        value: on all items.
        low: 2.5% quantile over resamples.
        high: 97.5% quantile.
        items: number of rows that were resampled.
    """

    value: float
    low: float
    high: float
    items: int

    def __str__(self) -> str:
        if math.isnan(self.value):
            return "-"
        if math.isnan(self.low):
            return f"{self.value:.3g}"
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"


def estimate(statistic: Callable[[Rows], float], rows: Rows, seed: int = 0) -> Estimate:
    """Estimate a statistic with its percentile bootstrap interval.

    Args:
        statistic: [rows, columns] -> number.
        rows: one per item, [rows, columns].
        seed: of the resampling.
    """
    return _estimate(statistic(rows), statistic, rows, seed)


def paired_difference(
    statistic: Callable[[Rows], float], one: Rows, other: Rows, seed: int = 0
) -> Estimate:
    """Estimate a statistic of `other` minus that of `one`, on the same resampled items.

    Args:
        statistic: [rows, columns] -> number.
        one: rows of the first model, [rows, columns].
        other: rows of the second one, the same items in the same order.
        seed: of the resampling.

    Raises:
        ValueError: the two sides do not have the same number of rows.
    """
    if one.shape != other.shape:
        raise ValueError(
            f"paired_difference: got {one.shape} and {other.shape}, expected the same items"
        )
    k = one.shape[1]

    def difference(rows: Rows) -> float:
        return statistic(rows[:, k:]) - statistic(rows[:, :k])

    both = np.concatenate([one, other], axis=1)
    return _estimate(difference(both), difference, both, seed)


def _estimate(value: float, statistic: Callable[[Rows], float], rows: Rows, seed: int) -> Estimate:
    n = len(rows)
    if n < 2 or math.isnan(value):
        return Estimate(value, math.nan, math.nan, n)
    rng = np.random.default_rng(seed)
    resampled = np.array([statistic(rows[rng.integers(n, size=n)]) for _ in range(RESAMPLES)])
    there = resampled[~np.isnan(resampled)]
    if not len(there):
        return Estimate(value, math.nan, math.nan, n)
    low, high = np.quantile(there, [0.025, 0.975])
    return Estimate(value, float(low), float(high), n)
