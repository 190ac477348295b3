"""Intervals from few seeds and many examples: a paired, hierarchical bootstrap."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = list[NDArray[np.float64]]
"""One array a seed, of one number an example."""

RESAMPLES = 4000


@dataclass(frozen=True)
class Interval:
    """A mean over seeds and its 95% interval."""

    mean: float
    low: float
    high: float
    seeds: int

    def __str__(self) -> str:
        return f"{self.mean:.3g} [{self.low:.3g}, {self.high:.3g}]"

    @property
    def covers_zero(self) -> bool:
        """Return whether there may be no effect at all."""
        return self.low <= 0 <= self.high


def bootstrap(values: Values, seed: int = 0) -> Interval:
    """Return the mean over seeds; seeds are drawn again, then examples within each of them.

    One seed alone says nothing about others: its interval is then that of its examples, and the
    number of seeds stands beside it.
    """
    seeds = [np.asarray(v, dtype=np.float64).ravel() for v in values]
    if not seeds or any(len(v) == 0 for v in seeds):
        raise ValueError(f"bootstrap: got {[len(v) for v in seeds]} values by seed, expected some")
    if not all(np.isfinite(v).all() for v in seeds):
        raise ValueError("bootstrap: got values that are not finite")
    random = np.random.default_rng(seed)
    # the mean of a resampled seed, for each seed and resample
    means = np.stack(
        [v[random.integers(len(v), size=(RESAMPLES, len(v)))].mean(1) for v in seeds], axis=1
    )
    drawn = random.integers(len(seeds), size=(RESAMPLES, len(seeds)))
    totals = np.take_along_axis(means, drawn, axis=1).mean(1)
    mean = float(np.mean([v.mean() for v in seeds]))
    low, high = np.quantile(totals, [0.025, 0.975])
    return Interval(mean, float(min(low, mean)), float(max(high, mean)), len(seeds))


def difference(one: Values, other: Values) -> Values:
    """Return one minus other, paired by seed and example."""
    if [len(v) for v in one] != [len(v) for v in other]:
        raise ValueError(
            f"difference: got {[len(v) for v in one]} and {[len(v) for v in other]} values by "
            "seed, expected the same examples on both sides"
        )
    return [np.asarray(a) - np.asarray(b) for a, b in zip(one, other, strict=True)]
