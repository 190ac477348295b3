"""Intervals and p-values over seeds, and how they treat runs that did not reach a criterion.

The unit is the seed: examples of one model are not independent evidence about the mechanism.

- `seed_interval` and `student_t`: a mean over seeds with its 95% interval, by Student's t.
- `example_interval`: of ONE model over its examples; says nothing about other seeds.
- `p_more`, `p_same`, `p_no_worse`: one-sided t tests over seed means; `holm` adjusts them.
- `log_rank`: compares numbers of steps to a criterion, where some runs never reached it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Values = list[NDArray[np.float64]]
"""One array per seed, one number per example in it."""


@dataclass(frozen=True)
class Interval:
    """A mean over seeds with its 95% interval.

    Attributes:
        mean: mean over seeds.
        low: lower end; NaN if there is none (a single seed).
        high: upper end, likewise.
        seeds: number of seeds.
        by_seed: the mean of each seed; None for an interval over the examples of one model.
    """

    mean: float
    low: float
    high: float
    seeds: int
    by_seed: tuple[float, ...] | None = None

    def __str__(self) -> str:
        if math.isnan(self.low):
            return f"{self.mean:.3g}"
        return f"{self.mean:.3g} [{self.low:.3g}, {self.high:.3g}]"

    def plus_minus(self) -> str:
        """Return `mean ± half width`, for symmetric intervals; the mean alone without one."""
        half = (self.high - self.low) / 2
        return f"{self.mean:.4g}" + ("" if math.isnan(half) else f" ± {half:.2g}")


def seed_interval(values: Values) -> Interval:
    """Estimate the mean over seeds: the mean of each seed's examples, then Student's t.

    Args:
        values: one array per seed, of one number per example; for a difference between arms,
            paired by seed (`difference`).

    Returns:
        The mean of the seed means and its 95% interval; with one seed the ends are NaN.

    Raises:
        ValueError: a seed without values, or values that are not finite.
    """
    return student_t([float(_examples(v).mean()) for v in values])


def example_interval(values: ArrayLike) -> Interval:
    """Estimate the mean of ONE model over its examples, by Student's t over the examples.

    For the description of one model. It is no evidence about other seeds: use `seed_interval`.

    Raises:
        ValueError: no values, or values that are not finite.
    """
    over = student_t(_examples(values).tolist())
    return Interval(over.mean, over.low, over.high, 1)


def student_t(by_seed: Sequence[float]) -> Interval:
    """Estimate the mean over seeds with Student's t.

    Args:
        by_seed: one value per seed, at least one.

    Returns:
        The mean and its 95% interval; with one seed the ends are NaN, and with identical values
        the interval has no width.

    Raises:
        ValueError: no values, or values that are not finite.
    """
    kept = tuple(_examples(by_seed).tolist())
    mean, error = _mean_and_error(kept)
    if len(kept) < 2:
        return Interval(mean, math.nan, math.nan, len(kept), kept)
    half = _t_quantile(len(kept) - 1) * error
    return Interval(mean, mean - half, mean + half, len(kept), kept)


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


def p_more(by_seed: Sequence[float]) -> float:
    """Return the one-sided p of a mean above 0, by a t test over seeds.

    Raises:
        ValueError: fewer than two seeds.
    """
    from scipy import stats

    if len(by_seed) < 2:
        raise ValueError(f"a t test: got {len(by_seed)} seeds, expected at least 2")
    mean, error = _mean_and_error(by_seed)
    if error == 0:
        return 0.0 if mean > 0 else 1.0
    return float(stats.t.sf(mean / error, len(by_seed) - 1))


def p_no_worse(by_seed: Sequence[float], size: float) -> float:
    """Return the one-sided p of a mean above -size (non-inferiority)."""
    return p_more([value + size for value in by_seed])


def p_same(by_seed: Sequence[float], size: float) -> float:
    """Return the p of a mean within ±size: two one-sided tests (TOST), the larger of their p."""
    return max(p_no_worse(by_seed, size), p_no_worse([-value for value in by_seed], size))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for their number by Holm's step-down method, in the given order.

    An adjusted p below a level means that the hypothesis is rejected while the probability of any
    false rejection among all of them stays below that level.
    """
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = largest
    return adjusted


@dataclass(frozen=True)
class CensoredSteps:
    """Steps to a criterion, one per seed; a run that never reached it is censored.

    Attributes:
        steps: the step at which the criterion was reached, or the last step of the run.
        reached: whether it was reached.
    """

    steps: tuple[int, ...]
    reached: tuple[bool, ...]

    def __post_init__(self) -> None:
        if not self.steps or len(self.steps) != len(self.reached):
            raise ValueError(
                f"CensoredSteps: got {len(self.steps)} steps and {len(self.reached)} marks of "
                "reached, expected one of each per seed"
            )

    @property
    def median(self) -> int | None:
        """Return the step by which half of the runs had reached it; None if fewer ever did."""
        ended = sorted(s for s, reached in zip(self.steps, self.reached, strict=True) if reached)
        half = (len(self.steps) + 1) // 2
        return ended[half - 1] if len(ended) >= half else None


def log_rank(one: CensoredSteps, other: CensoredSteps) -> float:
    """Return the two-sided p of the log-rank test: do two arms differ in their steps to criterion?

    Returns:
        The p-value; 1 if there is nothing to compare (no run of either arm reached the criterion).
    """
    from scipy import stats

    samples = []
    for arm in (one, other):
        pairs = list(zip(arm.steps, arm.reached, strict=True))
        samples.append(
            stats.CensoredData(
                uncensored=[step for step, reached in pairs if reached],
                right=[step for step, reached in pairs if not reached],
            )
        )
    with np.errstate(invalid="ignore"):  # 0 / 0 where no ordering is possible
        p = float(stats.logrank(*samples).pvalue)
    return 1.0 if math.isnan(p) else p


def _examples(values: ArrayLike) -> NDArray[np.float64]:
    found = np.asarray(values, dtype=np.float64).ravel()
    if not len(found):
        raise ValueError("an interval: got no values, expected at least one")
    if not np.isfinite(found).all():
        raise ValueError("an interval: got values that are not finite")
    return found


def _mean_and_error(by_seed: Sequence[float]) -> tuple[float, float]:
    """Return the mean and its standard error; 0 for a single value or identical ones."""
    n = len(by_seed)
    mean = math.fsum(by_seed) / n
    if min(by_seed) == max(by_seed):  # exactly, whatever the mean was rounded to
        return by_seed[0], 0.0
    variance = math.fsum((v - mean) ** 2 for v in by_seed) / (n - 1)
    return mean, math.sqrt(variance / n)


def _t_quantile(degrees: int) -> float:
    """Return the two-sided 95% quantile of Student's t."""
    from scipy import stats

    return float(stats.t.ppf(0.975, degrees))
