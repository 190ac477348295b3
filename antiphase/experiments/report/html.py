"""A study as one HTML page that needs nothing else: pictures and plotly's script are inside."""

import base64
import tempfile
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from antiphase.analysis.statistics import Interval
from antiphase.experiments.attention_example import AttentionExample, HeadMap
from antiphase.experiments.experiment import Figure, Table
from antiphase.experiments.report.attention_picture import draw_attention, picture_caption
from antiphase.experiments.report.findings import (
    POWER_COLUMNS,
    POWER_NOTE,
    Clause,
    counts_line,
    not_tested_line,
    power_line,
    power_rows,
    reading_tallies,
    readings_shown,
    sentences,
)
from antiphase.experiments.report.interactive import plotly_map, plotly_panels
from antiphase.experiments.report.published import ABSENT
from antiphase.experiments.report.rows import (
    ARM_COLUMNS,
    CLAIM_COLUMNS,
    FOOTNOTE,
    GATE_COLUMNS,
    OTHER_COLUMNS,
    RECIPE_COLUMNS,
    Finding,
    ReportCell,
    arm_rows,
    by_seed_text,
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
from antiphase.experiments.report.words import INTRODUCTION, MAPS_NOTE, RECIPE_NOTE, WORDS
from antiphase.experiments.results import Result, Study
from antiphase.experiments.verdicts import Verdict
from antiphase.training.checkpoints import write_atomic

STYLE = """
:root { --line: #d0d4da; --soft: #f5f6f8; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1b1f24; margin: 0 auto; max-width: 72rem; padding: 1rem; overflow-wrap: break-word; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.25rem; margin-top: 2.5rem; border-top: 1px solid var(--line); padding-top: 1rem; }
p, ul, dl { max-width: 50rem; } .status { font-weight: 600; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; margin: .8rem 0; }
th, td { border: 1px solid var(--line); padding: .35rem .6rem; text-align: left; vertical-align: top; }
th { background: var(--soft); } .findings li { margin-bottom: .5rem; } .why { color: #57606a; } code { background: var(--soft); padding: .1rem .3rem; white-space: nowrap; }
.supported { background: #cfe5f5; font-weight: 600; } .refuted { background: #f8d5bf; font-weight: 600; } .failed { background: #f8d5bf; }
.undecided { background: #f5f1d6; } .invalid { background: #e4dcec; } .descriptive { font-style: italic; } .alone, [data-name=p], [data-name^=survives] { white-space: nowrap; }
dt { font-weight: 600; float: left; clear: left; margin-right: .5rem; } dd { margin: 0 0 .35rem; }
figure { margin: 1rem 0; } figure img { width: 100%; } .plotly-graph-div { max-width: 100%; }
.maps, .panels { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 20rem), 1fr)); gap: .5rem; }
.panels { grid-template-columns: repeat(auto-fill, minmax(min(100%, 15rem), 1fr)); } .maps > div, .panels > div { min-width: 0; }
@media (max-width: 40rem) {
  h1 { font-size: 1.3rem; } code { white-space: normal; } dt { float: none; } table { font-size: .8rem; } th, td { padding: .2rem .3rem; }
  table.cards, .cards tbody, .cards tr, .cards td, .cards th { display: block; border: 0; } .cards tr.head { display: none; }
  .cards tr { border: 1px solid var(--line); margin-bottom: .5rem; padding: .3rem; } .cards td:empty { display: none; }
  .cards td::before { content: attr(data-name); display: block; color: #57606a; font-size: .7rem; font-weight: 400; font-style: normal; }
}
@media print { body { max-width: none; } h2 { break-after: avoid; } figure, table { break-inside: avoid; } }
"""


def write_html(
    study: Study, path: Path, published: Study | None = None, explorer: str | None = None
) -> None:
    """Write the page of a study.

    Args:
        study: to show.
        path: of the page.
        published: the published study, to stand beside.
        explorer: a page beside this one with the maps of the study's models, to link.
    """
    import plotly.offline

    beside = ABSENT if published is None else f"Published study. {status_line(published)}"
    body = [
        "<h1>Does differential attention cancel noise?</h1>",
        f"<p>{escape(INTRODUCTION)}</p><ul>",
        *_readings(study),
        "</ul>",
        *_findings(study, published),
        f"<p class=why>{escape(status_line(study))}</p>",
        _picture(study.attention),
        _explorer(explorer),
        "<h2>Verdicts</h2>",
        _verdicts(study, published),
        f"<p class=why>{escape(FOOTNOTE)}. {escape(beside)}</p>",
        *_power(study),
        _maps(study.attention),
        "<h2 id=words>Words on this page</h2><dl>",
        *(f"<dt>{escape(term)}</dt><dd>{escape(says)}.</dd>" for term, says in WORDS.items()),
        "</dl>",
        *(_section(study, result) for result in ran(study)),
        _training(study),
    ]
    if study.claims:
        body += [
            "<h2>Compared with published numbers</h2>",
            f"<p class=why>{escape(claim_note(study))}</p>",
            _table(CLAIM_COLUMNS, claim_rows(study), cards=True),
        ]
    body += [
        f"<h2>Recipe</h2><p>{escape(RECIPE_NOTE)}</p>",
        _table(RECIPE_COLUMNS, recipe_rows(study)),
    ]
    if lines := not_run_lines(study):
        body += ["<h2>Not run</h2>", *(f"<p class=why>{_with_code(line)}</p>" for line in lines)]
    body.append(
        f"<h2>Provenance</h2><p class=why>{escape(' '.join(provenance_lines(study)))} "
        f"{escape(machine_line(study))}.</p>"
    )
    page = (
        "<!doctype html><html lang=en><head><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width, initial-scale=1'>"
        f"<title>Antiphase lab</title><style>{STYLE}</style>"
        f"<script>{plotly.offline.get_plotlyjs()}</script></head>"
        f"<body>{''.join(body)}</body></html>"
    )
    write_atomic(path, page)


def _readings(study: Study) -> list[str]:
    """Return the readings, each with its number of verdicts."""
    tallies = reading_tallies(study)
    return [
        f"<li><b>{name}</b>: {escape(says)}"
        + (f". <b>{tallies[name]}</b>" if name in tallies else "")
        + "</li>"
        for name, says in readings_shown(study).items()
    ]


def _findings(study: Study, published: Study | None) -> list[str]:
    """Return the counts of verdicts, then one sentence per test."""
    parts = ["<h2>Findings</h2>", f"<p class=status>{escape(counts_line(study))}</p>"]
    if published is not None:
        parts.append(f"<p>Published study: {escape(counts_line(published))}</p>")
    parts.append("<ul class=findings>")
    for sentence in sentences(study):
        name = f"<b>{escape(sentence.name)}</b>"
        if sentence.why_not:
            parts.append(f"<li>{name}. {escape(sentence.text())}</li>")
            continue
        said = sentence.text(_clause) if sentence.clauses else escape(sentence.text())
        parts.append(
            f"<li><a href='#test{sentence.number}'>{name}</a>. {escape(sentence.question)} "
            f"{said}</li>"
        )
    parts.append("</ul>")
    note = f"{escape(not_tested_line(study))} Terms are explained <a href='#words'>below</a>."
    return [*parts, f"<p class=why>{note}</p>"]


def _clause(clause: Clause) -> str:
    lead = f"<span class={clause.verdict.value}>{escape(clause.lead)}</span>"
    return f"{lead} <span class=why>({escape(clause.numbers)})</span>"


def _power(study: Study) -> list[str]:
    """Return what differences the study could have detected."""
    rows = power_rows(study)
    if not rows:
        return []
    return [
        "<h2>What this study could detect</h2>",
        f"<p>{escape(power_line(study))}</p><p class=why>{escape(POWER_NOTE)}</p>",
        _table(POWER_COLUMNS, rows),
    ]


def _verdicts(study: Study, published: Study | None) -> str:
    """Return the table of verdicts; the name of a test is a row of its own and links to it."""
    columns = verdict_columns(published)[1:]
    linked = {heading(result): result.number for result in ran(study)}
    parts = [_head(columns)]
    for name, *row in verdict_rows(study, published):
        if name:
            title = escape(cell_text(name))
            if name in linked:
                title = f"<a href='#test{linked[str(name)]}'>{title}</a>"
            parts.append(f"<tr><th colspan={len(columns)}>{title}</th></tr>")
        parts.append(_row(columns, row))
    return f"<div class=scroll><table class=cards>{''.join(parts)}</table></div>"


def _picture(example: AttentionExample | None) -> str:
    """Return the picture of the attention on one sequence, in two widths."""
    if example is None:
        return ""
    with tempfile.TemporaryDirectory() as folder:
        sources = []
        for narrow in (False, True):
            path = Path(folder) / "picture.png"
            draw_attention(example, path, narrow=narrow)
            sources.append(f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}")
    return (
        "<h2>Where attention goes</h2><figure><picture>"
        f"<source media='(max-width: 40rem)' srcset='{sources[1]}'>"
        f"<img src='{sources[0]}' alt='Attention weights at the question, one panel per mechanism'>"
        f"</picture><figcaption class=why>{escape(picture_caption(example))}</figcaption></figure>"
    )


def _explorer(page: str | None) -> str:
    if page is None:
        return ""
    link = f"<a href='{escape(page)}'>Explore the attention maps of these models</a>"
    return f"<p>{link}: all heads, tokens to point at, and a slider for lam.</p>"


def _maps(example: AttentionExample | None) -> str:
    """Return the complete maps of a few heads, by arm."""
    if example is None or not example.maps:
        return ""
    note = f"{MAPS_NOTE} Point at a cell for its weight. All on {example.source}."
    parts = [f"<h2>Attention maps of a few heads</h2><p class=why>{escape(note)}</p>"]
    for arm in dict.fromkeys(m.arm for m in example.maps):
        mine = [m for m in example.maps if m.arm == arm]
        heads = dict.fromkeys(_about_head(m) for m in mine)
        drawn = "".join(f"<div>{_plotly(plotly_map(m, example))}</div>" for m in mine)
        parts.append(f"<p><b>{escape(arm)}</b>: {escape('; '.join(heads))}.</p>")
        parts.append(f"<div class=maps>{drawn}</div>")
    return "".join(parts)


def _about_head(m: HeadMap) -> str:
    kind = "a retrieval head" if m.retrieves else "no retrieval head"
    lam = "" if m.lam is None else f", lam {m.lam:g} at the question"
    return f"layer {m.layer}, head {m.head} is {kind}{lam}"


def _training(study: Study) -> str:
    if not study.training:
        return ""
    return "<h2>Training</h2>" + "".join(_titled(table, study.seeds) for table in study.training)


def _section(study: Study, result: Result) -> str:
    parts = [
        f"<h2 id=test{result.number}>{escape(heading(result))}</h2>",
        f"<p>{escape(result.question)}</p>",
        *(f"<p><b>{escape(note)}</b></p>" for note in result.notes),
        _table(*prediction_table(study, result), cards=True, seeds=result.seeds),
    ]
    if gates := gate_rows(result):
        parts.append("<p><b>Gates</b></p>")
        parts.append(_table(GATE_COLUMNS, gates, cards=True, seeds=result.seeds))
    for figure in result.figures:
        parts.append(_figure(figure, result))
    parts += [_titled(table, result.seeds) for table in result.tables]
    if other := other_rows(result):
        parts.append(_table(OTHER_COLUMNS, other, seeds=result.seeds))
    if result.arms:
        parts.append(_table(ARM_COLUMNS, arm_rows(result), cards=True))
    parts.append(
        f"<p class=why>Measured on: {escape(result.provenance)}. "
        f"Run it again: <code>{escape(command(result))}</code></p>"
    )
    return "".join(parts)


def _figure(figure: Figure, result: Result) -> str:
    """Return a figure; one without a common axis as small panels under its title."""
    drawn = [_plotly(part) for part in plotly_panels(figure, result.seeds, result.figures)]
    if len(drawn) == 1:
        return f"<figure>{drawn[0]}</figure>"
    parts = "".join(f"<div>{part}</div>" for part in drawn)
    title = f"<figcaption><b>{escape(figure.title)}</b></figcaption>"
    return f"<figure>{title}<div class=panels>{parts}</div></figure>"


def _plotly(figure: Any) -> str:
    config = {"displayModeBar": False, "responsive": True}
    return str(figure.to_html(full_html=False, include_plotlyjs=False, config=config))


def _titled(table: Table, seeds: Sequence[int]) -> str:
    note = f" {escape(table.note)}" if table.note else ""
    title = f"<p><b>{escape(table.title)}.</b>{note}</p>"
    return title + _table(table.columns, table.rows, seeds=seeds)


def _table(
    columns: list[str],
    rows: Sequence[Sequence[ReportCell]],
    *,
    cards: bool = False,
    seeds: Sequence[int] = (),
) -> str:
    """Return a table; with `cards`, each row is a block on narrow screens."""
    body = "".join(_row(columns, row, seeds) for row in rows)
    kind = " class=cards" if cards else ""
    return f"<div class=scroll><table{kind}>{_head(columns)}{body}</table></div>"


def _head(columns: Sequence[str]) -> str:
    return f"<tr class=head>{''.join(f'<th>{escape(c)}</th>' for c in columns)}</tr>"


def _row(columns: Sequence[str], row: Sequence[ReportCell], seeds: Sequence[int] = ()) -> str:
    cells = (_cell(cell, name, seeds) for name, cell in zip(columns, row, strict=True))
    return f"<tr>{''.join(cells)}</tr>"


def _cell(cell: ReportCell, name: str, seeds: Sequence[int]) -> str:
    """Return a cell: verdicts carry their style class, intervals the values by seed."""
    verdict = cell.verdict if isinstance(cell, Finding) else cell
    interval = cell.interval if isinstance(cell, Finding) else cell
    attributes = f" data-name='{escape(name, quote=True)}'" if name else ""
    if isinstance(verdict, Verdict):
        alone = " alone" if verdict is cell else ""
        attributes += f" class='{verdict.value.replace(' ', '-')}{alone}'"
    elif cell == "FAILED":
        attributes += " class=failed"
    if isinstance(interval, Interval) and (values := by_seed_text(interval, seeds)):
        attributes += f" title='{escape(values)}'"
    return f"<td{attributes}>{escape(cell_text(cell))}</td>"


def _with_code(line: str) -> str:
    """Return a line whose `commands` are set as code."""
    parts = escape(line).split("`")
    return "".join(f"<code>{p}</code>" if i % 2 else p for i, p in enumerate(parts))
