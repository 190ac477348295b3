"""How often a 95% interval over seeds covers the true mean, by simulation.

Run: python docs/coverage.py. It prints the table of docs/verdicts.md.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Numbers = NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, int]], Numbers]

SEEDS = (3, 5, 8)
DRAWS = 20_000
RESAMPLES = 500
LEARNS, FAILED, NOISE = 0.9, -0.5, 0.02  # fraction of seeds; effect of a failed one; sd


def normal(random: np.random.Generator, shape: tuple[int, int]) -> Numbers:
    """Draw seed effects from a normal distribution with mean 0."""
    return random.normal(0.0, 1.0, shape)


def bimodal(random: np.random.Generator, shape: tuple[int, int]) -> Numbers:
    """Draw seed effects of an arm that learns or fails, whatever the seed's small noise."""
    centre = np.where(random.random(shape) < LEARNS, 0.0, FAILED)
    return centre + random.normal(0.0, NOISE, shape)


TRUE_MEANS: dict[Draw, float] = {normal: 0.0, bimodal: (1 - LEARNS) * FAILED}


def t_interval(values: Numbers) -> tuple[Numbers, Numbers]:
    """Return the ends of Student's 95% interval of each row [draws, seeds]."""
    n = values.shape[1]
    half = stats.t.ppf(0.975, n - 1) * values.std(1, ddof=1) / np.sqrt(n)
    return values.mean(1) - half, values.mean(1) + half


def percentile_bootstrap(values: Numbers) -> tuple[Numbers, Numbers]:
    """Return the ends of the percentile bootstrap over seeds of each row [draws, seeds]."""
    random = np.random.default_rng(1)
    n = values.shape[1]
    # how often each seed is drawn in a resample [resamples, seeds]; the same for all rows
    times = random.multinomial(n, np.full(n, 1 / n), RESAMPLES)
    low, high = np.quantile(values @ times.T / n, [0.025, 0.975], axis=1)
    return low, high


def coverage(
    draw: Draw,
    interval: Callable[[Numbers], tuple[Numbers, Numbers]],
    seeds: int,
    draws: int = DRAWS,
) -> float:
    """Return the fraction of simulated studies whose interval covers the true mean."""
    low, high = interval(draw(np.random.default_rng(0), (draws, seeds)))
    return float(np.mean((low <= TRUE_MEANS[draw]) & (TRUE_MEANS[draw] <= high)))


def table() -> str:
    """Return the coverage as a Markdown table."""
    columns = [f"{n} seeds" for n in SEEDS]
    lines = [f"| seed effects, interval | {' | '.join(columns)} |", "|---|" + "---|" * len(SEEDS)]
    effects = {"normal": normal, f"{LEARNS:.0%} of the seeds learn": bimodal}
    intervals = {"Student's t": t_interval, "percentile bootstrap": percentile_bootstrap}
    for name, draw in effects.items():
        for kind, interval in intervals.items():
            cells = [f"{coverage(draw, interval, n):.1%}" for n in SEEDS]
            lines.append(f"| {name}, {kind} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
