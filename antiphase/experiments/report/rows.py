"""What the report says, as rows of cells: the page, the Markdown and the terminal show the same.

A cell with a verdict holds the `Verdict` itself; how it is shown is up to the format.
"""

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from antiphase.analysis.statistics import Interval
from antiphase.experiments.plans import lab_command
from antiphase.experiments.published_claims import SOURCES
from antiphase.experiments.registry import EXPERIMENTS
from antiphase.experiments.report.words import SETTINGS
from antiphase.experiments.results import NOT_SELECTED, Result, Study
from antiphase.experiments.verdicts import (
    LEVEL,
    MIN_SEEDS,
    READINGS,
    CheckedGate,
    Gate,
    Prediction,
    Verdict,
)

DAGGER = "†"
FOOTNOTE = f"{DAGGER} see the note at the test"

NAME_WIDTH = 18  # of a test's name in a terminal of 80 columns

GATE_COLUMNS = [
    "gate",
    "what is measured",
    "passes if",
    "measured",
    "outcome",
    "applies to predictions",
]
ARM_COLUMNS = ["arm", "recipe"]
CLAIM_COLUMNS = ["", "published", "source", "standard, here", "V1, here"]
OTHER_COLUMNS = ["also measured", ""]
RECIPE_COLUMNS = ["setting", "value", "meaning"]


@dataclass(frozen=True)
class Finding:
    """What a study says about a primary prediction.

    Attributes:
        verdict: by the rules, `descriptive` with few seeds.
        interval: that was measured.
        exploratory: whether the predictions were not locked, or there are too few seeds.
        failed: kinds of the gates that failed.
        void: why the verdict was withdrawn; empty if it was not.
    """

    verdict: Verdict
    interval: Interval
    exploratory: bool
    failed: tuple[str, ...] = ()
    void: str = ""

    def __str__(self) -> str:
        parts = [str(self.interval)]
        if self.interval.seeds >= MIN_SEEDS:
            parts = [f"{self.verdict.label}: {self.interval}"]
        if self.exploratory:
            parts.append("exploratory")
        if self.failed:
            parts.append(f"failed gates: {' and '.join(self.failed)}")
        if self.void:
            parts.append("withdrawn")
        return ", ".join(parts)


ReportCell = str | Interval | Verdict | Finding | None
Row = list[ReportCell]


def cell_text(cell: ReportCell) -> str:
    """Return a cell as text: verdicts with their sign, intervals with their ends."""
    if isinstance(cell, Verdict):
        return cell.label
    return "" if cell is None else str(cell)


def heading(result: Result) -> str:
    """Return the number and title of a test, with a dagger if it has notes."""
    return f"{result.number}. {result.title}" + (f" {DAGGER}" if result.notes else "")


def ran(study: Study) -> list[Result]:
    """Return the tests of a study that were run."""
    return [result for result in study.results if not result.why_not]


def finding(study: Study, result: Result | None, reading: str) -> Finding | None:
    """Return what a study says about a reading's primary prediction in a test.

    Returns:
        None if the test was not run, or the reading predicts nothing in it.
    """
    if result is None or result.why_not:
        return None
    for prediction, judgement in zip(result.predictions, result.judgements(), strict=True):
        if prediction.primary and prediction.reading == reading:
            interval = result.effects[prediction.effect]
            failed = dict.fromkeys(checked.gate.kind for checked in judgement.failed)
            exploratory = not study.locked(result) or interval.seeds < MIN_SEEDS
            void = judgement.void
            return Finding(judgement.verdict, interval, exploratory, tuple(failed), void)
    return None


def published_findings(published: Study | None, number: int) -> dict[str, Finding]:
    """Return what the published study says about each reading in a test."""
    if published is None:
        return {}
    result = next((r for r in published.results if r.number == number), None)
    found = {reading: finding(published, result, reading) for reading in READINGS}
    return {reading: f for reading, f in found.items() if f is not None}


def verdict_columns(published: Study | None = None) -> list[str]:
    """Return the headings of `verdict_rows`."""
    beside = [] if published is None else ["published"]
    return ["test", "reading", *beside, "measured here", "prediction"]


def verdict_rows(study: Study, published: Study | None = None) -> list[Row]:
    """Return one row per primary prediction of the tests that this or the published study ran.

    Args:
        study: that was just measured.
        published: the study that ships with the package, if it does.

    Returns:
        The test (in its first row only), the reading, what the published study says, what this one
        measured, and the prediction.
    """
    rows: list[Row] = []
    for name, prediction, theirs, here in _found(study, published):
        beside: Row = [] if published is None else [theirs]
        what = f"{prediction.effect}: {prediction.bound}"
        rows.append([name, prediction.reading, *beside, here, what])
    return rows


def narrow_verdict_rows(study: Study, published: Study | None = None) -> list[Row]:
    """Return the rows of `verdict_rows` for a terminal, without the last column.

    What was measured has its effect beside it; of the published study there is the verdict alone.
    """
    rows: list[Row] = []
    for name, prediction, theirs, here in _found(study, published):
        beside: Row = [] if published is None else [theirs and theirs.verdict]
        measured = "" if here is None else f"{prediction.effect}: {here}"
        rows.append([textwrap.fill(name, NAME_WIDTH), prediction.reading, *beside, measured])
    return rows


def _found(
    study: Study, published: Study | None
) -> Iterator[tuple[str, Prediction, Finding | None, Finding | None]]:
    """Yield test, primary prediction, and what the published and this study say about it."""
    earlier = {} if published is None else {r.number: r for r in ran(published)}
    for result in study.results:
        theirs = earlier.get(result.number)
        if result.why_not and theirs is None:
            continue
        shown = theirs if theirs is not None and result.why_not else result
        name = heading(shown)
        for prediction in (p for p in shown.predictions if p.primary):
            reading = prediction.reading
            before = None if published is None else finding(published, theirs, reading)
            yield name, prediction, before, finding(study, result, reading)
            name = ""


def numbers_shown(study: Study, published: Study | None = None) -> list[int]:
    """Return the numbers of the tests in `verdict_rows`."""
    either = {r.number for s in (study, published) if s is not None for r in ran(s)}
    return sorted(either)


def not_run_lines(study: Study, shown: Sequence[int] = ()) -> list[str]:
    """Say which tests were not run and how to run them; one line, and one per failure.

    Args:
        study: whose tests to name.
        shown: numbers of tests to leave out, unless they failed.
    """
    lines = [
        f"Test {result.number} ({result.title}), no result: {result.why_not}; run it with "
        f"`{command(result)}`."
        for result in study.results
        if result.why_not not in ("", NOT_SELECTED)
    ]
    others = [r for r in study.results if r.why_not == NOT_SELECTED and r.number not in shown]
    if others:
        names = ", ".join(f"{r.number} {r.title}" for r in others)
        numbers: dict[str, list[str]] = {}
        for result in others:
            entry = EXPERIMENTS.get(result.number)
            on_text = entry is not None and entry.text  # the quick study has all others
            start = lab_command(entry.studies[0] if entry and on_text else "quick")
            numbers.setdefault(start, []).append(str(result.number))
        commands = [f"`{start} --only {','.join(mine)}`" for start, mine in numbers.items()]
        lines.append(f"Not run: {names}; run them with {', '.join(commands)}.")
    return lines


def prediction_table(study: Study, result: Result) -> tuple[list[str], list[Row]]:
    """Return the predictions of a test; columns for p only where there is a p."""
    adjusted = study.adjusted_p()
    columns = ["", "reading", "effect", "predicted", "because", "measured", "verdict"]
    judgements = result.judgements()
    with_p = any(judgement.p is not None for judgement in judgements)
    rows: list[Row] = []
    for i, (prediction, judgement) in enumerate(zip(result.predictions, judgements, strict=True)):
        row: Row = [
            str(i + 1),
            prediction.reading + (" (primary)" if prediction.primary else ""),
            str(prediction.effect),
            prediction.bound,
            prediction.because,
            result.effects.get(prediction.effect),
            judgement.verdict,
        ]
        if with_p:
            p = adjusted.get((result.number, prediction.reading)) if prediction.primary else None
            row.append("" if judgement.p is None else f"{judgement.p:.2g}")
            row.append("" if p is None else f"{'yes' if p < LEVEL else 'no'} ({p:.2g})")
        rows.append(row)
    return [*columns, *(["p", "survives Holm (p)"] if with_p else [])], rows


def gate_rows(result: Result) -> list[Row]:
    """Return every gate of a test's predictions once, with its number and its outcome."""
    of: dict[Gate, list[int]] = {}
    for i, prediction in enumerate(result.predictions):
        for gate in prediction.gates:
            of.setdefault(gate, []).append(i + 1)
    rows: list[Row] = []
    for gate, predictions in of.items():
        checked = CheckedGate(gate, result.effects[gate.effect].mean)
        rows.append(
            [
                gate.kind,
                str(gate.effect),
                gate.bound,
                result.effects[gate.effect],
                "passed" if checked.passed else "FAILED",
                ", ".join(map(str, predictions)),
            ]
        )
    return rows


def other_rows(result: Result) -> list[Row]:
    """Return one row per effect that was measured without a prediction or a gate about it."""
    predicted = {effect for prediction in result.predictions for effect in prediction.required}
    return [
        [str(effect), interval]
        for effect, interval in result.effects.items()
        if effect not in predicted
    ]


def arm_rows(result: Result) -> list[Row]:
    """Return one row per arm: its name and how its recipe differs from the common one."""
    return [[name, changes or "the common recipe"] for name, changes in result.arms.items()]


def claim_rows(study: Study) -> list[Row]:
    """Return one row per published number, with where it was published."""
    return [
        [claim.what, claim.published, SOURCES.get(claim.what, ""), claim.standard, claim.v1]
        for claim in study.claims
    ]


def claim_note(study: Study) -> str:
    """Say what our numbers beside the published ones come from."""
    seeds = ", ".join(map(str, study.claims_seeds))
    return f"Other models, another task, another size: for orientation. Ours: seeds {seeds}."


def recipe_rows(study: Study) -> list[Row]:
    """Return one row per setting of the common recipe that is set; options are settings, too."""
    unset: tuple[Any, ...] = (None, [], {}, "")
    found = _settings(study.recipe)
    return [
        [name, _setting_text(value), SETTINGS.get(name, "")]
        for name, value in found
        if value not in unset
    ]


def _settings(fields: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each setting; those of inner dictionaries under names like `task_options.length`."""
    for name, value in fields.items():
        if isinstance(value, dict):
            yield from _settings(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _setting_text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def provenance_lines(study: Study) -> list[str]:
    """Say which tests were measured from which arms and seeds."""
    groups: dict[str, list[str]] = {}
    for result in study.results:
        if result.provenance:
            groups.setdefault(result.provenance, []).append(str(result.number))
    return [
        f"Test{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}: {provenance}."
        for provenance, numbers in groups.items()
    ]


def status_line(study: Study) -> str:
    """Say whether the predictions were locked before the runs; if not, the study is exploratory."""
    lock = study.lock
    if lock is None:
        count = len(study.seeds)
        seeds = f"{count} seed{'' if count == 1 else 's'}"
        few = f", no verdicts below {MIN_SEEDS} seeds" if count < MIN_SEEDS else ""
        return f"Exploratory: no lock, {seeds}{few}."
    changed = " (with changes that were not committed)" if lock["dirty"] else ""
    seeds = ", ".join(map(str, lock["seeds"]))
    return (
        f"Predictions were written before the runs: study {lock['study_id']}, locked at "
        f"{lock['time']}, seeds {seeds}, commit {lock['commit']}{changed}, SHA-256 "
        f"{lock['digest']}."
    )


def machine_line(study: Study) -> str:
    """Return the versions and the machine of the study's last run."""
    about = study.environment
    return (
        f"antiphase {about.get('antiphase', '')}, torch {about.get('torch', '')}, "
        f"{about.get('cpu', '')}"
    )


def by_seed_text(interval: Interval, seeds: Sequence[int] = ()) -> str:
    """Return the value of each seed; empty if there are none."""
    if interval.by_seed is None or any(math.isnan(v) for v in interval.by_seed):
        return ""
    names = seeds if len(seeds) == len(interval.by_seed) else range(len(interval.by_seed))
    pairs = zip(names, interval.by_seed, strict=True)
    return "by seed: " + ", ".join(f"{seed}: {value:.3g}" for seed, value in pairs)


def command(result: Result) -> str:
    """Return the command that runs a test again."""
    start = lab_command(result.study_id)
    unlocked = start == "antiphase lab"
    seeds = f" --seeds {len(result.seeds)}" if result.seeds and unlocked else ""
    return f"{start} --only {result.number}{seeds}"
