"""What the report says, as rows of cells: the page, the Markdown and the terminal show the same.

A cell with a verdict holds the `Verdict` itself; how it is shown is up to the format.
"""

from typing import Any

from antiphase.analysis.compare_runs import flat_fields
from antiphase.analysis.statistics import Interval
from antiphase.experiments.results import Result, Study
from antiphase.experiments.verdicts import LEVEL, READINGS, Judgement, Prediction, Verdict

ReportCell = str | Interval | Verdict | None
Row = list[ReportCell]

DAGGER = "†"
FOOTNOTE = f"{DAGGER} the test has a note that a reader of its verdict must know"
LEGEND = (
    "The verdict of a test on a reading is that on its primary prediction. Invalid: a gate failed, "
    "so the test cannot speak. Descriptive: fewer than 5 seeds, so there is no verdict. p is "
    f"one-sided; it survives Holm's method over all primary predictions of the study below {LEVEL}"
)
INTERVALS = "Intervals are 95%, by Student's t over the means of paired seeds."

VERDICT_COLUMNS = ["test", *READINGS]
PREDICTION_COLUMNS = [
    "reading",
    "effect",
    "predicted",
    "because",
    "gates",
    "measured",
    "verdict",
    "p",
    "survives Holm (p)",
]
ARM_COLUMNS = ["arm", "recipe"]
CLAIM_COLUMNS = ["", "published", "standard, here", "V1, here"]
OTHER_COLUMNS = ["also measured", ""]


def cell_text(cell: ReportCell) -> str:
    """Return a cell as text: verdicts with their sign, intervals with their ends."""
    if isinstance(cell, Verdict):
        return cell.label
    return "" if cell is None else str(cell)


def heading(result: Result) -> str:
    """Return the number and title of a test, with a dagger if it has notes."""
    return f"{result.number}. {result.title}" + (f" {DAGGER}" if result.notes else "")


def verdict_rows(study: Study) -> list[Row]:
    """Return one row per test: its name, then its verdict on each reading, None without one."""
    return [
        [heading(result), *(result.about(reading) for reading in READINGS)]
        for result in study.results
    ]


def prediction_rows(study: Study, result: Result) -> list[Row]:
    """Return one row per prediction of a test."""
    adjusted = study.adjusted_p()

    def holm_cell(prediction: Prediction, judgement: Judgement) -> str:
        p = adjusted.get((result.number, prediction.reading)) if prediction.primary else None
        if p is None or judgement.p is None:
            return ""
        return f"{'yes' if p < LEVEL else 'no'} ({p:.2g})"

    return [
        [
            prediction.reading + (" (primary)" if prediction.primary else ""),
            str(prediction.effect),
            prediction.bound,
            prediction.because,
            _gates_text(prediction, judgement),
            result.effects.get(prediction.effect),
            judgement.verdict,
            "" if judgement.p is None else f"{judgement.p:.2g}",
            holm_cell(prediction, judgement),
        ]
        for prediction, judgement in zip(result.predictions, result.judgements(), strict=True)
    ]


def _gates_text(prediction: Prediction, judgement: Judgement) -> str:
    """Return every gate with its number; without one if the test was not run."""
    if judgement.gates:
        return "; ".join(map(str, judgement.gates))
    return "; ".join(f"{gate.kind}: {gate.effect} {gate.bound}" for gate in prediction.gates)


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
    """Return one row per published number."""
    return [[claim.what, claim.published, claim.standard, claim.v1] for claim in study.claims]


def claim_note(study: Study) -> str:
    """Say what our numbers beside the published ones come from."""
    seeds = ", ".join(map(str, study.claims_seeds))
    return f"Other models, another task, another size: for orientation. Ours: seeds {seeds}."


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


def lock_line(study: Study) -> str:
    """Say when the predictions were locked, on which code."""
    lock = study.lock
    if lock is None:
        return "The predictions were not locked before the runs."
    changed = " (with changes that were not committed)" if lock["dirty"] else ""
    seeds = ", ".join(map(str, lock["seeds"]))
    return (
        f"Predictions of the study {lock['study_id']} locked at {lock['time']}, seeds {seeds}, "
        f"commit {lock['commit']}{changed}, SHA-256 {lock['digest']}."
    )


def machine_line(study: Study) -> str:
    """Return the versions and the machine of the study's last run."""
    about = study.environment
    return (
        f"antiphase {about.get('antiphase', '')}, torch {about.get('torch', '')}, "
        f"{about.get('cpu', '')}"
    )


def recipe_line(study: Study) -> str:
    """Return the common recipe in one line."""
    unset: tuple[Any, ...] = (None, [], {}, "")
    return ", ".join(f"{k}={v}" for k, v in flat_fields(study.recipe).items() if v not in unset)


def command(result: Result) -> str:
    """Return the command that runs a test, on as many seeds as before, on all of its arms."""
    seeds = f" --seeds {len(result.seeds)}" if result.seeds else ""
    return f"antiphase lab --only {result.number}{seeds}"
