"""The benchmarks by name: what they read, and what is computed from their items.

A measure is a statistic over rows, one row per item or per cluster of items that belong together
(one question in several orders). Its columns are scores that the items' functions return. Intervals
come from resampling the rows, so a measure may be anything from a mean to a threshold at which a
model refuses a given part of the questions.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from antiphase.evaluation.suite.hotpotqa import CONDITIONS
from antiphase.evaluation.suite.many_shot import ORDERS
from antiphase.options import nearest

Rows = NDArray[np.float64]
"""[rows, columns]; NaN where a row has no such score."""
REFUSAL_RATES = (0.1, 0.25, 0.5)
"""Fractions of the answerable questions refused, at which models are compared."""


@dataclass(frozen=True)
class Measure:
    """A number that describes a model on a benchmark.

    Attributes:
        name: as the tables print it.
        columns: the scores that it is computed from.
        statistic: [rows, columns] -> number; NaN if the rows do not determine it.
        higher_is_better: None where neither is better.
    """

    name: str
    columns: tuple[str, ...]
    statistic: Callable[[Rows], float]
    higher_is_better: bool | None = True


@dataclass(frozen=True)
class Benchmark:
    """A benchmark.

    Attributes:
        name: on the command line; the harness's task is `antiphase_NAME`.
        summary: one line.
        files: keys of `benchmark_data.FILES`.
        measures: the first is the main one.
        version: raised when the meaning of its items changes; stored results are then repeated.
    """

    name: str
    summary: str
    files: tuple[str, ...]
    measures: tuple[Measure, ...]
    version: int = 1


def mean(rows: Rows) -> float:
    """Return the mean of all scores that are there."""
    there = rows[~np.isnan(rows)]
    return float(there.mean()) if len(there) else math.nan


def bits_per_byte(rows: Rows) -> float:
    """Return bits per byte of rows (log-likelihood in nats, bytes)."""
    loglikelihood, size = rows.sum(0)
    return float(-loglikelihood / size / math.log(2))


def drop(rows: Rows) -> float:
    """Return the mean of the first column minus the second."""
    return float((rows[:, 0] - rows[:, 1]).mean())


def all_correct(rows: Rows) -> float:
    """Return the fraction of rows whose scores are all 1."""
    return float((rows == 1).all(1).mean())


def all_equal(rows: Rows) -> float:
    """Return the fraction of rows whose values are all the same."""
    return float((rows == rows[:, :1]).all(1).mean())


def spread(rows: Rows) -> float:
    """Return the largest mean of a column minus the smallest."""
    means = rows.mean(0)
    return float(means.max() - means.min())


def hallucinated_at(refusal_rate: float, rows: Rows) -> float:
    """Return the fraction of unanswerable questions that are answered at a refusal rate.

    Args:
        refusal_rate: fraction of the answerable questions that are refused.
        rows: [questions, (answerable, refusal log-likelihood)].
    """
    answerable = rows[:, 0] == 1
    if answerable.all() or not answerable.any():
        return math.nan
    threshold = np.quantile(rows[answerable, 1], 1 - refusal_rate)
    return float((rows[~answerable, 1] <= threshold).mean())


def exact_at(refusal_rate: float, rows: Rows) -> float:
    """Return the fraction of answerable questions answered exactly at a refusal rate.

    Args:
        refusal_rate: fraction of the answerable questions that are refused.
        rows: [questions, (answerable, refusal log-likelihood, exact)].
    """
    answerable = rows[rows[:, 0] == 1]
    if not len(answerable):
        return math.nan
    kept = answerable[:, 1] <= np.quantile(answerable[:, 1], 1 - refusal_rate)
    return float((answerable[:, 2] * kept).mean())


def _accuracy(name: str) -> Measure:
    return Measure(name, (name,), mean)


_BITS = Measure(
    "bits per byte",
    ("bits_per_byte_loglikelihood", "bits_per_byte_bytes"),
    bits_per_byte,
    higher_is_better=False,
)
_CHOICE = (_accuracy("acc_norm"), _accuracy("acc"))
_ANSWERS = tuple(f"correct_{order}" for order in ORDERS)
_MATCHED = tuple(
    measure
    for rate in REFUSAL_RATES
    for measure in (
        Measure(
            f"hallucinated, {rate:.0%} refused",
            ("answerable", "refusal_loglikelihood"),
            partial(hallucinated_at, rate),
            higher_is_better=False,
        ),
        Measure(
            f"exact, {rate:.0%} refused",
            ("answerable", "refusal_loglikelihood", "exact"),
            partial(exact_at, rate),
        ),
    )
)

BENCHMARKS = {
    b.name: b
    for b in (
        Benchmark(
            "needle",
            "a number stated in essays, by depth and length",
            ("essays",),
            (
                Measure("found", ("found",), mean),
                Measure("log-likelihood", ("loglikelihood",), mean),
            ),
        ),
        Benchmark(
            "squad2",
            "SQuAD 2.0: answers, hallucinations and refusals, also at equal refusal rates",
            ("squad2",),
            (
                Measure("exact", ("exact",), mean),
                Measure("F1", ("f1",), mean),
                Measure("hallucinated", ("hallucinated",), mean, higher_is_better=False),
                Measure("refused", ("refused",), mean, higher_is_better=False),
                *_MATCHED,
            ),
        ),
        Benchmark(
            "hotpotqa",
            "HotpotQA: questions over two paragraphs, with and without distractors",
            ("hotpotqa",),
            (
                *(
                    Measure(f"{title}, {condition}", (f"{score}_{condition}",), mean)
                    for condition in CONDITIONS
                    for title, score in (("F1", "f1"), ("exact", "exact"))
                ),
                Measure(
                    "F1 lost to distractors",
                    ("f1_supporting", "f1_distractors"),
                    drop,
                    higher_is_better=False,
                ),
            ),
        ),
        Benchmark(
            "many_shot",
            "SST-2 with 16 demonstrations in five orders",
            ("sst2",),
            (
                Measure("accuracy", _ANSWERS, mean),
                Measure("correct in all orders", _ANSWERS, all_correct),
                Measure(
                    "same answer in all orders",
                    tuple(f"chosen_{order}" for order in ORDERS),
                    all_equal,
                ),
                Measure("spread over orders", _ANSWERS, spread, higher_is_better=False),
            ),
        ),
        Benchmark(
            "lambada",
            "LAMBADA: the last word of a passage",
            ("lambada",),
            (_accuracy("acc"), _BITS),
        ),
        Benchmark("hellaswag", "HellaSwag: the likeliest ending", ("hellaswag",), _CHOICE),
        Benchmark("arc_easy", "ARC Easy, test split", ("arc_easy",), _CHOICE),
        Benchmark("arc_challenge", "ARC Challenge, test split", ("arc_challenge",), _CHOICE),
        Benchmark("piqa", "PIQA: physical common sense", ("piqa",), _CHOICE),
        Benchmark("gsm8k_bpb", "GSM8K: the worked answers, by bits per byte", ("gsm8k",), (_BITS,)),
        Benchmark("essays_bpb", "essays, by bits per byte", ("essays",), (_BITS,)),
    )
}
"""All benchmarks, by name."""


def find_benchmarks(names: Sequence[str]) -> list[Benchmark]:
    """Return benchmarks by name, each once.

    Raises:
        ValueError: a name is unknown, or none was given.
    """
    if not names:
        raise ValueError(f"tasks: none was given; allowed are {', '.join(BENCHMARKS)}")
    for name in names:
        if name not in BENCHMARKS:
            raise ValueError(
                f"tasks: got {name!r}, allowed are {', '.join(BENCHMARKS)}"
                f"{nearest(name, BENCHMARKS)}"
            )
    return [BENCHMARKS[name] for name in dict.fromkeys(names)]
