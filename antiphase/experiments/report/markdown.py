"""A study as Markdown, for a README or a terminal."""

import re
from collections.abc import Sequence

from antiphase.experiments.attention_example import AttentionExample
from antiphase.experiments.experiment import Table
from antiphase.experiments.report.attention_picture import picture_caption
from antiphase.experiments.report.findings import (
    POWER_COLUMNS,
    POWER_NOTE,
    counts_line,
    not_tested_line,
    power_line,
    power_rows,
    reading_tallies,
    readings_shown,
    sentences,
)
from antiphase.experiments.report.published import ABSENT
from antiphase.experiments.report.rows import (
    ARM_COLUMNS,
    CLAIM_COLUMNS,
    FOOTNOTE,
    GATE_COLUMNS,
    OTHER_COLUMNS,
    RECIPE_COLUMNS,
    ReportCell,
    arm_rows,
    cell_text,
    claim_note,
    claim_rows,
    command,
    gate_rows,
    heading,
    machine_line,
    not_run_lines,
    other_rows,
    prediction_table,
    provenance_lines,
    ran,
    recipe_rows,
    status_line,
    verdict_columns,
    verdict_rows,
)
from antiphase.experiments.report.static import figure_names, map_rows
from antiphase.experiments.report.words import INTRODUCTION, MAPS_NOTE, RECIPE_NOTE, WORDS
from antiphase.experiments.results import Result, Study
from antiphase.markdown import markdown_table


def as_markdown(study: Study, published: Study | None = None) -> str:
    """Return the picture, the verdicts, the words, then each test with its numbers.

    Args:
        study: to show; its pictures are in `attention.png` and `figures/` beside the text.
        published: the published study, to stand beside.
    """
    parts = [
        "# The lab: does differential attention cancel noise?\n",
        f"{INTRODUCTION}\n",
        *_readings(study),
        *_findings(study, published),
        f"\n{status_line(study)}",
    ]
    if study.attention:
        caption = picture_caption(study.attention)
        parts.append(f"\n![Where attention goes on one sequence](attention.png)\n\n{caption}")
    parts += [
        "\n## Verdicts\n",
        cells_table(verdict_columns(published), verdict_rows(study, published)),
        f"\n{FOOTNOTE}. " + (ABSENT if published is None else status_line(published)),
    ]
    if rows := power_rows(study):
        parts += [
            "\n## What this study could detect\n",
            f"{power_line(study)} {POWER_NOTE}\n",
            cells_table(POWER_COLUMNS, rows),
        ]
    if study.attention and study.attention.maps:
        parts.append(_maps(study.attention))
    parts.append("\n## Words\n")
    parts += [f"- **{term}**: {says}." for term, says in WORDS.items()]
    parts += [_section(study, result) for result in ran(study)]
    if study.training:
        parts.append("\n## Training\n")
        parts += [_table(table) for table in study.training]
    if study.claims:
        parts += [
            "\n## Compared with published numbers\n",
            f"{claim_note(study)}\n",
            cells_table(CLAIM_COLUMNS, claim_rows(study)),
        ]
    parts += ["\n## Recipe\n", f"{RECIPE_NOTE}\n"]
    parts.append(cells_table(RECIPE_COLUMNS, recipe_rows(study)))
    if lines := not_run_lines(study):
        parts += ["\n## Not run\n", "\n\n".join(lines)]
    parts += ["\n## Provenance\n", f"{' '.join(provenance_lines(study))} {machine_line(study)}."]
    return _without_markup("\n".join(parts) + "\n")


def _without_markup(text: str) -> str:
    """Escape tags and links: the fields of a results.json may be anyone's, and have neither."""
    return re.sub(
        r"\](?=[\[:]|\((?!figures/|attention\.png\)))", "&#93;", text.replace("<", "&lt;")
    )


def _readings(study: Study) -> list[str]:
    tallies = reading_tallies(study)
    return [
        f"- **{name}**: {says}" + (f". **{tallies[name]}**" if name in tallies else "")
        for name, says in readings_shown(study).items()
    ]


def _findings(study: Study, published: Study | None) -> list[str]:
    """Return the counts of verdicts, then one sentence per test."""
    parts = ["\n## Findings\n", f"{counts_line(study)}\n"]
    if published is not None:
        parts.append(f"Published study: {counts_line(published)}\n")
    for sentence in sentences(study):
        question = "" if sentence.why_not else f"{sentence.question} "
        said = sentence.text(lambda clause: f"**{clause.lead}** ({clause.numbers})")
        parts.append(f"- **{sentence.name}**. {question}{said}")
    if line := not_tested_line(study):
        parts.append(f"\n{line}")
    return parts


def _maps(example: AttentionExample) -> str:
    parts = ["\n## Attention maps of a few heads\n", f"{MAPS_NOTE} {example.source}.\n"]
    for name, maps in map_rows(example).items():
        parts.append(f"![{example.title(maps[0])}](figures/{name})\n")
    return "\n".join(parts)


def _section(study: Study, result: Result) -> str:
    parts = [f"\n## {heading(result)}\n", f"{result.question}\n"]
    parts += [f"**{note}**\n" for note in result.notes]
    parts.append(cells_table(*prediction_table(study, result)))
    if gates := gate_rows(result):
        parts += ["", cells_table(GATE_COLUMNS, gates)]
    parts.append("")
    for name, figure in zip(figure_names(result), result.figures, strict=True):
        parts.append(f"![{figure.title}](figures/{name})")
    parts += [_table(table) for table in result.tables]
    if other := other_rows(result):
        parts += ["", cells_table(OTHER_COLUMNS, other)]
    parts += ["", cells_table(ARM_COLUMNS, arm_rows(result))]
    parts.append(f"\nMeasured on: {result.provenance}. `{command(result)}`")
    return "\n".join(parts)


def _table(table: Table) -> str:
    note = f" {table.note}" if table.note else ""
    return f"\n**{table.title}.**{note}\n\n" + cells_table(table.columns, table.rows)


def cells_table(columns: list[str], rows: Sequence[Sequence[ReportCell]]) -> str:
    """Return rows of a report's cells under headings."""
    return markdown_table(columns, [[cell_text(cell) for cell in row] for row in rows])
