"""A study as Markdown, for a README or a terminal."""

from typing import Any

from antiphase.experiments.arms import flat
from antiphase.experiments.experiment import Table
from antiphase.experiments.report.static import still_names
from antiphase.experiments.study import Result, Study
from antiphase.experiments.verdicts import READINGS, Verdict

SIGNS = {
    Verdict.SUPPORTED: "✔ supported",
    Verdict.REFUTED: "✘ refuted",
    Verdict.UNDECIDED: "? undecided",
    Verdict.NOT_RUN: "not run",
}

MARK = "†"
FOOTNOTE = f"{MARK} the test has a note that a reader of its verdict must know"


def verdict_rows(study: Study) -> list[list[str]]:
    """Return a row a test: its name, then what it says about each reading; "" if nothing."""
    rows = []
    for result in study.results:
        found = (result.about(reading) for reading in READINGS)
        cells = ["" if verdict is None else SIGNS[verdict] for verdict in found]
        mark = f" {MARK}" if result.notes else ""
        rows.append([f"{result.number}. {result.title}{mark}", *cells])
    return rows


def as_markdown(study: Study) -> str:
    """Return verdicts, then each test with its predictions and numbers."""
    about = study.environment
    parts = [
        f"# The lab: {study.kind}\n",
        f"Seeds {', '.join(map(str, study.seeds))}; {about.get('cpu', '')}, torch "
        f"{about.get('torch', '')}. Intervals: 95%, bootstrap over seeds, then texts.\n",
        markdown_table(["test", *READINGS], verdict_rows(study)),
        "",
        *(f"- **{name}**: {says}" for name, says in READINGS.items()),
        f"- {FOOTNOTE}",
    ]
    if study.claims:
        rows = [[c.what, c.published, c.standard, c.v1] for c in study.claims]
        parts += [
            "\n## Beside published numbers\n",
            "Other models, another task, another size: for orientation.\n",
            markdown_table(["", "published", "standard, here", "V1, here"], rows),
        ]
    parts += [f"\nAll models share this recipe, but for what a test says: {recipe_line(study)}."]
    parts += [_section(result) for result in study.results]
    return "\n".join(parts) + "\n"


def recipe_line(study: Study) -> str:
    """Return the common recipe in a line."""
    unset: tuple[Any, ...] = (None, [], {}, "")
    return ", ".join(f"{k}={v}" for k, v in flat(study.recipe).items() if v not in unset)


def arm_rows(result: Result) -> list[list[str]]:
    """Return a row an arm: its name and how it differs from the common recipe."""
    return [[name, changes or "the common recipe"] for name, changes in result.arms.items()]


def prediction_rows(result: Result) -> list[list[str]]:
    """Return a row a prediction: reading, what it expects and why, what was found, verdict."""
    rows = []
    for prediction, verdict in zip(result.predictions, result.verdicts(), strict=True):
        found = result.effects.get(prediction.effect)
        rows.append(
            [
                prediction.reading,
                f"{prediction.effect}: {prediction.bound}",
                prediction.because,
                "" if found is None else str(found),
                SIGNS[verdict],
            ]
        )
    return rows


ARM_COLUMNS = ["arm", "its settings"]
PREDICTION_COLUMNS = ["reading", "predicts", "because", "measured", "verdict"]


def command(result: Result) -> str:
    """Return the command that runs a test again."""
    return f"antiphase lab --only {result.number}"


def _section(result: Result) -> str:
    parts = [f"\n## {result.number}. {result.title}\n", f"{result.question}\n"]
    parts.append(markdown_table(PREDICTION_COLUMNS, prediction_rows(result)))
    if result.why_not:
        parts.append(f"\nNot run: {result.why_not}. `{command(result)}`")
        return "\n".join(parts)
    parts += [f"\n**{note}**" for note in result.notes]
    parts.append("")
    for name, picture in zip(still_names(result), result.pictures, strict=True):
        parts.append(f"![{picture.title}](figures/{name})")
    for table in result.tables:
        parts += [f"\n{table.title}:\n", _of(table)]
    other = {
        name: found
        for name, found in result.effects.items()
        if name not in {p.effect for p in result.predictions}
    }
    if other:
        rows = [[name, str(found)] for name, found in other.items()]
        parts += ["", markdown_table(["also measured", ""], rows)]
    parts += ["", markdown_table(ARM_COLUMNS, arm_rows(result)), f"\n`{command(result)}`"]
    return "\n".join(parts)


def _of(table: Table) -> str:
    return markdown_table(table.columns, table.rows)


def markdown_table(columns: list[str], rows: list[list[str]]) -> str:
    """Return rows under headings."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in lines
    )
