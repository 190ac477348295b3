"""A study as one HTML page that needs nothing else: plotly's script is inside."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from antiphase.experiments.report.interactive import plotly_figure
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
from antiphase.experiments.results import Result, Study
from antiphase.experiments.verdicts import READINGS, Verdict
from antiphase.training.checkpoints import write_atomic

STYLE = """
:root { --line: #d0d4da; --soft: #f5f6f8; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1b1f24; margin: 0 auto; max-width: 62rem; padding: 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.25rem; margin-top: 2.5rem; border-top: 1px solid var(--line); padding-top: 1rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; margin: .8rem 0; }
th, td { border: 1px solid var(--line); padding: .35rem .6rem; text-align: left; vertical-align: top; }
th { background: var(--soft); } .why { color: #57606a; } code { background: var(--soft); padding: .1rem .3rem; }
.supported { background: #cfe5f5; font-weight: 600; } .refuted { background: #f8d5bf; font-weight: 600; }
.undecided { background: #f5f1d6; } .invalid { background: #e4dcec; } .descriptive { font-style: italic; } .not-run { color: #8a9099; }
.supported, .refuted, .undecided, .invalid { white-space: nowrap; }
figure { margin: 1rem 0; } .plotly-graph-div { max-width: 100%; }
@media (max-width: 40rem) { .supported, .refuted, .undecided, .invalid { white-space: normal; } table { font-size: .75rem; } th, td { padding: .2rem .3rem; } h1 { font-size: 1.3rem; } }
@media print { body { max-width: none; } h2 { break-after: avoid; } figure, table { break-inside: avoid; } }
"""


def write_html(study: Study, path: Path) -> None:
    """Write the page of a study."""
    import plotly.offline

    script = plotly.offline.get_plotlyjs()
    links = [f"#test{result.number}" for result in study.results]
    body = [
        "<h1>Why differential attention works</h1>",
        f"<p class=why>{escape(' '.join(provenance_lines(study)))} {escape(machine_line(study))}. "
        f"{escape(INTERVALS)} {escape(lock_line(study))}</p>",
        _table(VERDICT_COLUMNS, verdict_rows(study), links),
        "<ul>",
        *(f"<li><b>{name}</b>: {escape(says)}</li>" for name, says in READINGS.items()),
        f"<li>{FOOTNOTE}</li>",
        "</ul>",
        f"<p class=why>{escape(LEGEND)}.</p>",
    ]
    for table in study.training:
        body += [f"<h2>{escape(table.title)}</h2>", _table(table.columns, table.rows)]
    if study.claims:
        body += [
            "<h2>Beside published numbers</h2>",
            f"<p class=why>{escape(claim_note(study))}</p>",
            _table(CLAIM_COLUMNS, claim_rows(study)),
        ]
    body.append(
        "<p class=why>All models share this recipe, except for the changes named: "
        f"{escape(recipe_line(study))}.</p>"
    )
    body += [_section(study, result) for result in study.results]
    page = (
        "<!doctype html><html lang=en><head><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width, initial-scale=1'>"
        f"<title>Antiphase lab</title><style>{STYLE}</style>"
        f"<script>{script}</script></head><body>{''.join(body)}</body></html>"
    )
    write_atomic(path, page)


def _section(study: Study, result: Result) -> str:
    parts = [
        f"<h2 id=test{result.number}>{result.number}. {escape(result.title)}</h2>",
        f"<p>{escape(result.question)}</p>",
        _table(PREDICTION_COLUMNS, prediction_rows(study, result)),
    ]
    if result.why_not:
        parts.append(f"<p class=why>Not run: {escape(result.why_not)}.</p>")
    else:
        parts.append(f"<p class=why>Measured on: {escape(result.provenance)}.</p>")
    parts += [f"<p><b>{escape(note)}</b></p>" for note in result.notes]
    for figure in result.figures:
        drawn = plotly_figure(figure).to_html(
            full_html=False,
            include_plotlyjs=False,
            config={"displayModeBar": False, "responsive": True},
        )
        parts.append(f"<figure>{drawn}</figure>")
    for table in result.tables:
        parts += [f"<p><b>{escape(table.title)}</b></p>", _table(table.columns, table.rows)]
    if other := other_rows(result):
        parts.append(_table(OTHER_COLUMNS, other))
    if result.arms:
        parts.append(_table(ARM_COLUMNS, arm_rows(result)))
    parts.append(f"<p class=why>Run it again: <code>{command(result)}</code></p>")
    return "".join(parts)


def _table(
    columns: list[str], rows: Sequence[Sequence[ReportCell]], links: list[str] | None = None
) -> str:
    """Return a table; with `links`, the first cell of each row links there."""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = ""
    for i, row in enumerate(rows):
        cells = [_cell(cell) for cell in row]
        if links:
            cells[0] = f"<td><a href='{links[i]}'>{escape(cell_text(row[0]))}</a></td>"
        body += f"<tr>{''.join(cells)}</tr>"
    return f"<div class=scroll><table><tr>{head}</tr>{body}</table></div>"


def _cell(cell: ReportCell) -> str:
    """Return a cell; verdicts carry their style class."""
    name = f" class={cell.value.replace(' ', '-')}" if isinstance(cell, Verdict) else ""
    return f"<td{name}>{escape(cell_text(cell))}</td>"
