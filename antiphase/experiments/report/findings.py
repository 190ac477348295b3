"""What a study found, in one sentence per test, and what it could have found.

Everything is derived from predictions, intervals and gates; no sentence is written by hand.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from antiphase.analysis.statistics import Interval
from antiphase.experiments.conditions import STRESS
from antiphase.experiments.report.rows import Row, heading, ran
from antiphase.experiments.results import NOT_SELECTED, Result, Study
from antiphase.experiments.verdicts import (
    DEX_READINGS,
    LEVEL,
    MIN_SEEDS,
    READINGS,
    TEXT_READINGS,
    Effect,
    Judgement,
    Prediction,
    Verdict,
)

POWER = 0.8

LEADS = {
    Verdict.SUPPORTED: "supports {}",
    Verdict.REFUTED: "refutes {}",
    Verdict.UNDECIDED: "leaves {} undecided",
    Verdict.INVALID: "is invalid for {}",
    Verdict.DESCRIPTIVE: "has no verdict on {}",
}

MEANINGS = {
    Verdict.INVALID: " (a gate failed, or withdrawn)",
    Verdict.DESCRIPTIVE: f" (fewer than {MIN_SEEDS} seeds)",
}

POWER_COLUMNS = [
    "test",
    "reading",
    "size that counts",
    "half-width",
    "detectable",
    "tells the size from 0",
]
POWER_NOTE = (
    "It follows from the spread between the seeds. Half-width: of the measured 95% interval. "
    f"Detectable: the true difference that such an interval tells from 0 in {POWER:.0%} of studies "
    "with this spread and number of seeds, that is the half-width times 1 + t(0.8) / t(0.975). "
    "Where it exceeds the size that counts, an effect of that size could have been missed."
)


@dataclass(frozen=True)
class Clause:
    """What a test says about one reading: the verdict in words, and the numbers behind it."""

    verdict: Verdict
    lead: str
    numbers: str

    def __str__(self) -> str:
        return f"{self.lead} ({self.numbers})"


@dataclass(frozen=True)
class Sentence:
    """What a test found.

    Attributes:
        number: of the test.
        name: its number and title.
        question: that it asks.
        clauses: one per reading with a prediction; empty if the test has no result.
        why_not: why the test has no result; empty if it has one.
    """

    number: int
    name: str
    question: str
    clauses: tuple[Clause, ...]
    why_not: str = ""

    def text(self, show: Callable[[Clause], str] = str) -> str:
        """Return the answer to the question; `show` sets a clause in a format."""
        if self.why_not:
            return f"Not tested: {self.why_not}."
        if not self.clauses:
            return "No reading predicts anything here."
        return f"The test {'; it '.join(map(show, self.clauses))}."


def sentences(study: Study) -> list[Sentence]:
    """Return one sentence per test that was run, or that was meant to be and has no result."""
    adjusted = study.adjusted_p()
    return [
        Sentence(
            result.number,
            heading(result),
            result.question,
            tuple(_clauses(result, adjusted)),
            result.why_not,
        )
        for result in study.results
        if result.why_not != NOT_SELECTED
    ]


def not_tested_line(study: Study) -> str:
    """Name the tests that are not part of the study; empty if there are none."""
    others = [f"{r.number} {r.title}" for r in study.results if r.why_not == NOT_SELECTED]
    return f"Not tested here: {', '.join(others)}." if others else ""


def counts_line(study: Study) -> str:
    """Say how many primary predictions have which verdict."""
    tests = ran(study)
    found = [judgement.verdict for result in tests for _, _, judgement in _primary(result)]
    if not found:
        return "No prediction was tested."
    exploratory = "Exploratory, no lock: " if study.lock is None else ""
    return (
        f"{exploratory}{_number(len(found), 'primary prediction')} in "
        f"{_number(len(tests), 'test')}: {_tally(found, MEANINGS)}."
    )


def reading_tallies(study: Study) -> dict[str, str]:
    """Return how often each reading was supported, refuted, ...; only readings that were tested."""
    found: dict[str, list[Verdict]] = {}
    for result in ran(study):
        for reading, _, judgement in _primary(result):
            found.setdefault(reading, []).append(judgement.verdict)
    known = (*READINGS, *TEXT_READINGS, *DEX_READINGS)
    return {reading: _tally(found[reading]) for reading in known if reading in found}


def readings_shown(study: Study) -> dict[str, str]:
    """Return the readings that a study is about, with what each says."""
    tested = reading_tallies(study)
    on_text = {name: says for name, says in TEXT_READINGS.items() if name in tested}
    others = {name: says for name, says in READINGS.items() if name in tested or not on_text}
    return {**others, **on_text}


def detectable(interval: Interval) -> float:
    """Return the true difference that an interval of this width tells from 0 in 80% of studies.

    Args:
        interval: over at least two seeds.
    """
    from scipy import stats

    freedom = interval.seeds - 1
    ratio = stats.t.ppf(POWER, freedom) / stats.t.ppf(1 - LEVEL, freedom)
    return float(half_width(interval) * (1 + ratio))


def half_width(interval: Interval) -> float:
    """Return half the width of an interval."""
    return (interval.high - interval.low) / 2


def power_rows(study: Study) -> list[Row]:
    """Return one row per primary prediction that was tested on at least two seeds."""
    rows: list[Row] = []
    for result in ran(study):
        name = heading(result)
        for reading, prediction, judgement in _primary(result):
            interval = result.effects[prediction.effect]
            if interval.seeds < 2:
                continue
            least = detectable(interval)
            tells = "yes" if least <= prediction.size else "no"
            rows.append(
                [
                    name,
                    reading,
                    f"{prediction.size:g}",
                    f"{half_width(interval):.2g}",
                    f"{least:.2g}",
                    "invalid" if judgement.verdict is Verdict.INVALID else tells,
                ]
            )
            name = ""
    return rows


def power_line(study: Study) -> str:
    """Say for how many primary predictions the study is large enough."""
    tells = [row[-1] for row in power_rows(study) if row[-1] != "invalid"]
    return (
        f"For {tells.count('yes')} of {_number(len(tells), 'primary prediction')} whose gates "
        "held, this study tells an effect of the size that counts from none."
    )


def _primary(result: Result) -> list[tuple[str, Prediction, Judgement]]:
    pairs = zip(result.predictions, result.judgements(), strict=True)
    return [(p.reading, p, judgement) for p, judgement in pairs if p.primary and not result.why_not]


def _clauses(result: Result, adjusted: Mapping[tuple[int, str], float]) -> Iterator[Clause]:
    """Yield what a test says about each reading; numbers that two share are written once."""
    written: set[Effect] = set()
    for reading, prediction, judgement in _primary(result):
        numbers = [
            f"failed gate {c.gate.kind}: {_short(c.gate.effect)} = {c.measured:.3g}, must be "
            f"{c.gate.bound}"
            for c in judgement.failed
        ]
        numbers += [f"withdrawn: {judgement.void}"] if judgement.void else []
        effect = prediction.effect
        interval = result.effects[effect]
        if effect in written:
            numbers.append("the same effect")
        elif effect.versus and replace(effect, arm=effect.versus, versus=effect.arm) in written:
            numbers.append("the opposite difference")
        else:
            seeds = _number(interval.seeds, "seed")
            numbers.append(f"{_short(effect)} = {interval}, {seeds}")
        written.add(effect)
        numbers.append(f"predicted: {prediction.bound}")
        p = adjusted.get((result.number, reading))
        if judgement.verdict is Verdict.SUPPORTED and p is not None:
            numbers.append("survives Holm" if p < LEVEL else "does not survive Holm")
        lead = LEADS[judgement.verdict].format(reading)
        yield Clause(judgement.verdict, lead, "; ".join(numbers))


def _short(effect: Effect) -> str:
    return str(effect).replace(STRESS.name, "under stress")


def _tally(found: list[Verdict], meanings: dict[Verdict, str] | None = None) -> str:
    counts = Counter(found)
    named = {Verdict.DESCRIPTIVE: "without a verdict"}
    return ", ".join(
        f"{counts[v]} {named.get(v, v.value)}{(meanings or {}).get(v, '')}"
        for v in Verdict
        if counts[v]
    )


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
