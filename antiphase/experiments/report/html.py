"""A study as one page that needs nothing else: plotly's script stands inside."""

from html import escape
from pathlib import Path

from antiphase.experiments.experiment import Table
from antiphase.experiments.report.interactive import figure
from antiphase.experiments.report.markdown import (
    ARM_COLUMNS,
    FOOTNOTE,
    PREDICTION_COLUMNS,
    arm_rows,
    command,
    prediction_rows,
    recipe_line,
    verdict_rows,
)
from antiphase.experiments.study import Result, Study
from antiphase.experiments.verdicts import READINGS
from antiphase.training.checkpoints import write_atomic

STYLE = """
:root { --line: #d0d4da; --soft: #f5f6f8; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1b1f24; margin: 0 auto; max-width: 62rem; padding: 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.25rem; margin-top: 2.5rem; border-top: 1px solid var(--line); padding-top: 1rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; margin: .8rem 0; }
th, td { border: 1px solid var(--line); padding: .35rem .6rem; text-align: left; vertical-align: top; }
th { background: var(--soft); } .why { color: #57606a; } code { background: var(--soft); padding: .1rem .3rem; }
.supported { background: #cfe5f5; font-weight: 600; } .refuted { background: #f8d5bf; font-weight: 600; }
.undecided { background: #f5f1d6; } .supported, .refuted, .undecided { white-space: nowrap; } .none { color: #8a9099; }
figure { margin: 1rem 0; } .plotly-graph-div { max-width: 100%; }
@media (max-width: 40rem) { .supported, .refuted, .undecided { white-space: normal; } table { font-size: .75rem; } th, td { padding: .2rem .3rem; } h1 { font-size: 1.3rem; } }
@media print { body { max-width: none; } h2 { break-after: avoid; } figure, table { break-inside: avoid; } }
"""
_CLASSES = {"✔": "supported", "✘": "refuted", "?": "undecided", "n": "none"}


def write_html(study: Study, path: Path) -> None:
    """Write the page."""
    import plotly.offline

    script = plotly.offline.get_plotlyjs()
    about = study.environment
    seeds = ", ".join(map(str, study.seeds))
    body = [
        f"<h1>Why differential attention works: {escape(study.kind)}</h1>",
        f"<p class=why>antiphase {escape(str(about.get('antiphase', '')))}, torch "
        f"{escape(str(about.get('torch', '')))}, {escape(str(about.get('cpu', '')))}; seeds {seeds}. "
        "Intervals are 95%, by a bootstrap over seeds, then texts within a seed. Predictions were "
        "written down before the runs.</p>",
        _table(["test", *READINGS], verdict_rows(study), link=True),
        "<ul>",
        *(f"<li><b>{name}</b>: {escape(says)}</li>" for name, says in READINGS.items()),
        f"<li>{FOOTNOTE}</li>",
        "</ul>",
    ]
    if study.claims:
        rows = [[c.what, c.published, c.standard, c.v1] for c in study.claims]
        body += [
            "<h2>Beside published numbers</h2>",
            "<p class=why>Other models, another task, another size: for orientation.</p>",
            _table(["", "published", "standard, here", "V1, here"], rows),
        ]
    body.append(
        "<p class=why>All models share this recipe, but for what a test says: "
        f"{escape(recipe_line(study))}.</p>"
    )
    body += [_section(result) for result in study.results]
    page = (
        "<!doctype html><html lang=en><head><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width, initial-scale=1'>"
        f"<title>Antiphase lab: {escape(study.kind)}</title><style>{STYLE}</style>"
        f"<script>{script}</script></head><body>{''.join(body)}</body></html>"
    )
    write_atomic(path, page)


def _section(result: Result) -> str:
    parts = [
        f"<h2 id=test{result.number}>{result.number}. {escape(result.title)}</h2>",
        f"<p>{escape(result.question)}</p>",
        _table(PREDICTION_COLUMNS, prediction_rows(result)),
    ]
    if result.why_not:
        parts.append(f"<p class=why>Not run: {escape(result.why_not)}.</p>")
    parts += [f"<p><b>{escape(note)}</b></p>" for note in result.notes]
    for picture in result.pictures:
        drawn = figure(picture).to_html(
            full_html=False,
            include_plotlyjs=False,
            config={"displayModeBar": False, "responsive": True},
        )
        parts.append(f"<figure>{drawn}</figure>")
    parts += [_of(table) for table in result.tables]
    expected = {p.effect for p in result.predictions}
    other = [[name, str(i)] for name, i in result.effects.items() if name not in expected]
    if other:
        parts.append(_table(["also measured", ""], other))
    if result.arms:
        parts.append(_table(ARM_COLUMNS, arm_rows(result)))
    parts.append(f"<p class=why>Again: <code>{command(result)}</code></p>")
    return "".join(parts)


def _of(table: Table) -> str:
    return f"<p><b>{escape(table.title)}</b></p>" + _table(table.columns, table.rows)


def _table(columns: list[str], rows: list[list[str]], link: bool = False) -> str:
    head = "".join(f"<th>{escape(c)}</th>" for c in columns)
    body = ""
    for row in rows:
        cells = [_cell(text) for text in row]
        if link:
            number = row[0].split(".")[0]
            cells[0] = f"<td><a href='#test{number}'>{escape(row[0])}</a></td>"
        body += f"<tr>{''.join(cells)}</tr>"
    return f"<div class=scroll><table><tr>{head}</tr>{body}</table></div>"


def _cell(text: str) -> str:
    known = text[2:] if text[:2] in ("✔ ", "✘ ", "? ") else text
    verdict = (
        _CLASSES.get(text[:1])
        if known in ("supported", "refuted", "undecided", "not run")
        else None
    )
    return f"<td class={verdict}>{escape(text)}</td>" if verdict else f"<td>{escape(text)}</td>"
