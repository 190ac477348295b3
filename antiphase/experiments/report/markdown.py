"""A study as Markdown, for a README or a terminal."""

from collections.abc import Sequence

from antiphase.experiments.report.rows import (
    ARM_COLUMNS,
    CLAIM_COLUMNS,
    FOOTNOTE,
    INTERVALS,
    LEGEND,
    OTHER_COLUMNS,
    PREDICTION_COLUMNS,
    VERDICT_COLUMNS,
    ReportCell,
    arm_rows,
    cell_text,
    claim_note,
    claim_rows,
    command,
    lock_line,
    machine_line,
    other_rows,
    prediction_rows,
    provenance_lines,
    recipe_line,
    verdict_rows,
)
from antiphase.experiments.report.static import figure_names
from antiphase.experiments.results import Result, Study
from antiphase.experiments.verdicts import READINGS


def as_markdown(study: Study) -> str:
    """Return the verdicts, then each test with its predictions and numbers."""
    parts = [
        "# The lab: why differential attention works\n",
        f"{' '.join(provenance_lines(study))} {machine_line(study)}. {INTERVALS} "
        f"{lock_line(study)}\n",
        markdown_table(VERDICT_COLUMNS, verdict_rows(study)),
        "",
        *(f"- **{name}**: {says}" for name, says in READINGS.items()),
        f"- {FOOTNOTE}",
        f"\n{LEGEND}.",
    ]
    for table in study.training:
        parts += [f"\n## {table.title}\n", markdown_table(table.columns, table.rows)]
    if study.claims:
        parts += [
            "\n## Beside published numbers\n",
            f"{claim_note(study)}\n",
            markdown_table(CLAIM_COLUMNS, claim_rows(study)),
        ]
    shared = "All models share this recipe, except for the changes named"
    parts.append(f"\n{shared}: {recipe_line(study)}.")
    parts += [_section(study, result) for result in study.results]
    return "\n".join(parts) + "\n"


def _section(study: Study, result: Result) -> str:
    parts = [f"\n## {result.number}. {result.title}\n", f"{result.question}\n"]
    parts.append(markdown_table(PREDICTION_COLUMNS, prediction_rows(study, result)))
    if result.why_not:
        parts.append(f"\nNot run: {result.why_not}. `{command(result)}`")
        return "\n".join(parts)
    parts += [f"\n**{note}**" for note in result.notes]
    parts.append("")
    for name, figure in zip(figure_names(result), result.figures, strict=True):
        parts.append(f"![{figure.title}](figures/{name})")
    for table in result.tables:
        parts += [f"\n{table.title}:\n", markdown_table(table.columns, table.rows)]
    if other := other_rows(result):
        parts += ["", markdown_table(OTHER_COLUMNS, other)]
    parts += ["", markdown_table(ARM_COLUMNS, arm_rows(result))]
    parts.append(f"\nMeasured on: {result.provenance}. `{command(result)}`")
    return "\n".join(parts)


def markdown_table(columns: list[str], rows: Sequence[Sequence[ReportCell]]) -> str:
    """Return rows of cells under headings."""
    lines = [columns, ["---"] * len(columns), *([cell_text(cell) for cell in row] for row in rows)]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in lines
    )
