"""Intervals over seeds: one `Interval`, and the two estimators that make one.

- `bootstrap`: paired, hierarchical (seeds, then examples within a seed). The lab uses it.
- `student_t`: Student's t over one value per seed. `antiphase compare` uses it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = list[NDArray[np.float64]]
"""One array per seed, one number per example in it."""

RESAMPLES = 4000

# Two-sided 95% quantiles of Student's t by degrees of freedom, from 1. With more degrees of freedom
# than listed the last one is used: a little too wide, never too narrow.
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


@dataclass(frozen=True)
class Interval:
    """A mean over seeds with its 95% interval.

    Attributes:
        mean: mean over seeds.
        low: lower end; NaN where the estimator cannot give one (Student's t with one seed).
        high: upper end, likewise.
        seeds: number of seeds.
        by_seed: the mean of each seed, for estimators over seed means (`student_t`); None in
            studies that did not store it.
    """

    mean: float
    low: float
    high: float
    seeds: int
    by_seed: tuple[float, ...] | None = None

    def __str__(self) -> str:
        return f"{self.mean:.3g} [{self.low:.3g}, {self.high:.3g}]"

    @property
    def covers_zero(self) -> bool:
        """Return whether zero lies inside the interval."""
        return self.low <= 0 <= self.high

    def plus_minus(self) -> str:
        """Return `mean ± half width`, for symmetric intervals; the mean alone without one."""
        half = (self.high - self.low) / 2
        return f"{self.mean:.4g}" + ("" if math.isnan(half) else f" ± {half:.2g}")


def bootstrap(values: Values, seed: int = 0) -> Interval:
    """Estimate the mean over seeds by a hierarchical percentile bootstrap.

    Seeds are resampled, then examples within each of them. A single seed says nothing about other
    seeds: its interval is that of its examples, and `Interval.seeds` shows it.

    Args:
        values: one array per seed, of one number per example.
        seed: seed of the resampling, so that the same values always give the same interval.

    Returns:
        The mean of the seed means with the 2.5% and 97.5% quantiles of the resampled means.

    Raises:
        ValueError: a seed without values, or values that are not finite.
    """
    seeds = [np.asarray(v, dtype=np.float64).ravel() for v in values]
    if not seeds or any(len(v) == 0 for v in seeds):
        raise ValueError(
            f"bootstrap: got {[len(v) for v in seeds]} values by seed, expected some for each seed"
        )
    if not all(np.isfinite(v).all() for v in seeds):
        raise ValueError("bootstrap: got values that are not finite")
    random = np.random.default_rng(seed)
    # the mean of a resampled seed, for each seed and resample
    means = np.stack(
        [v[random.integers(len(v), size=(RESAMPLES, len(v)))].mean(1) for v in seeds], axis=1
    )
    drawn = random.integers(len(seeds), size=(RESAMPLES, len(seeds)))
    totals = np.take_along_axis(means, drawn, axis=1).mean(1)
    by_seed = tuple(float(v.mean()) for v in seeds)
    mean = float(np.mean(by_seed))
    low, high = np.quantile(totals, [0.025, 0.975])
    return Interval(mean, float(min(low, mean)), float(max(high, mean)), len(seeds), by_seed)


def student_t(by_seed: Sequence[float]) -> Interval:
    """Estimate the mean over seeds with Student's t.

    Args:
        by_seed: one value per seed, at least one.

    Returns:
        The mean and its 95% interval; with one seed the ends are NaN.
    """
    kept = tuple(float(v) for v in by_seed)
    n = len(kept)
    mean = math.fsum(kept) / n
    if n < 2:
        return Interval(mean, math.nan, math.nan, n, kept)
    deviation = math.sqrt(math.fsum((v - mean) ** 2 for v in kept) / (n - 1))
    half = _T95[min(n - 2, len(_T95) - 1)] * deviation / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n, kept)


def difference(one: Values, other: Values) -> Values:
    """Return one minus other, paired by seed and example.

    Raises:
        ValueError: the two sides do not hold the same number of examples per seed.
    """
    if [len(v) for v in one] != [len(v) for v in other]:
        raise ValueError(
            f"difference: got {[len(v) for v in one]} and {[len(v) for v in other]} values by "
            "seed, expected the same examples on both sides"
        )
    return [np.asarray(a) - np.asarray(b) for a, b in zip(one, other, strict=True)]
