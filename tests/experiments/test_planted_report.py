"""The page of a complete study with planted answers: what it says, and how it fits a phone."""

import re
import shutil
import subprocess
from dataclasses import replace
from html import escape

import pytest
from rich.console import Console

from antiphase.analysis.statistics import student_t
from antiphase.experiments import e05_sparsity, e13_cheap_noise, e15_layers
from antiphase.experiments.lock import new_lock
from antiphase.experiments.plans import PRIMARY as PLAN
from antiphase.experiments.published_claims import SOURCES
from antiphase.experiments.registry import EXPERIMENTS
from antiphase.experiments.report import write_report
from antiphase.experiments.report.html import STYLE
from antiphase.experiments.report.panels import panels
from antiphase.experiments.report.rows import claim_rows, recipe_rows
from antiphase.experiments.report.words import WORDS
from antiphase.experiments.results import NOT_SELECTED, Claim, Result, Study
from antiphase.experiments.study import distinct_arms
from antiphase.experiments.tuning import tune, tuning_table
from antiphase.experiments.verdicts import Verdict
from tests.experiments.planted import World, measure
from tests.experiments.test_planted import PRIMARY
from tests.experiments.test_report_attention import example, models  # noqa: F401
from tests.experiments.test_tuning import FakeEngine, bowl

WORLD = World(
    learned={"gated": 0.62},
    stress={"V1": 0.82, "top-k": 0.78, "foreign noise": 0.6, "simplex": 0.69},
    gain={(1.0, "near"): 0.4, (1.5, "near"): 0.5},
    retrieving="common",
    drop={"knocked out": [[0.0] * 4, [1.0, 1.0, 0, 0]]},
)
LOCK = new_lock(
    "planted", range(8), {number: EXPERIMENTS[number].load().predictions for number in PRIMARY}, {}
)


@pytest.fixture(scope="module")
def study(example, tmp_path_factory):  # noqa: F811
    """The tests of the primary study on planted models, tuned without training."""
    results = []
    for number, entry in EXPERIMENTS.items():
        if number in PRIMARY:
            with pytest.MonkeyPatch.context() as patch:
                results.append(measure(number, WORLD, patch))
        else:
            blank = Result(number, entry.title, entry.question, list(entry.load().predictions))
            results.append(replace(blank, why_not=NOT_SELECTED))
    arms = distinct_arms([EXPERIMENTS[number].load() for number in PRIMARY])
    engine = FakeEngine(loss=bowl(1, 0))
    root = tmp_path_factory.mktemp("trained")
    found = tune(PLAN.recipe, arms, PLAN.grid, root, Console(quiet=True), engine)
    interval = student_t([0.1, 0.3, 0.2])
    claims = [Claim(what, "V1 0.4", interval, interval) for what in SOURCES]
    return Study(
        results,
        claims,
        [0, 1, 2],
        {},
        PLAN.recipe.as_dict(),
        "planted",
        [*range(8)],
        LOCK,
        [tuning_table(found, PLAN.grid)],
        example,
    )


@pytest.fixture(scope="module")
def folder(study, tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    write_report(study, folder)
    return folder


@pytest.fixture(scope="module")
def page(folder):
    return (folder / "report.html").read_text().split("</script>", 1)[1]


@pytest.fixture(scope="module")
def text(folder):
    return (folder / "report.md").read_text()


def test_findings_come_first_and_agree_with_the_verdicts(study, page, text):
    found = [v for r in study.results for v in r.primary().values() if not r.why_not]
    count = {verdict: sum(j.verdict is verdict for j in found) for verdict in Verdict}
    assert min(count[Verdict.SUPPORTED], count[Verdict.REFUTED]) > 1
    assert count[Verdict.INVALID] == 2
    line = (
        f"{len(found)} primary predictions in 9 tests: {count[Verdict.SUPPORTED]} supported, "
        f"{count[Verdict.REFUTED]} refuted, 2 invalid (a gate failed, or withdrawn)."
    )
    for shown in (page, text):
        assert shown.index(line) < shown.index("4. Top-k") < shown.index("Predictions were written")
    assert len(re.findall(r"^- \*\*\d+\. ", text, re.M)) == len(PRIMARY)
    assert page.count("<li><a href='#test") == len(PRIMARY)
    (gating,) = re.findall(r"^- \*\*12\. Gating\*\*\. (.*)$", text, re.M)
    assert "**is invalid for unchaining** (failed gate learned: accuracy: gated, as" in gating
    assert "as trained = 0.62, must be ≥ 0.99" in gating
    (top_k,) = re.findall(r"^- \*\*4\. Top-k\*\*\. (.*)$", text, re.M)
    gain = study.results[3].effects[study.results[3].predictions[0].effect]
    assert f"**supports sparsity** (accuracy: top-k minus V1, under stress = {gain}, 8 se" in top_k
    assert "**refutes cancelling** (the opposite difference; predicted: more than 0, at" in top_k
    assert "Not tested here: 2 Pure cancellation, 3 Gradient dynamics, 9" in text


def test_every_table_scrolls_in_a_container_of_its_own(page):
    assert page.count("<table") > 40
    assert page.count("<table") == len(re.findall(r"<div class=scroll><table", page))
    assert ".scroll { overflow-x: auto; }" in STYLE


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_a_phone_does_not_scroll_sideways(folder, tmp_path):
    """The page tells its width to a frame around it: a window of chromium has at least 500 px."""
    width = "document.documentElement.scrollWidth"
    tell = f"onload = () => setTimeout(() => parent.postMessage({width}, '*'), 500)"
    inside = (folder / "report.html").read_text().replace("</body>", f"<script>{tell}</script>")
    (tmp_path / "inside.html").write_text(inside)
    frame = tmp_path / "frame.html"
    frame.write_text(
        "<body><script>onmessage = e => document.body.dataset.width = e.data</script>"
        "<iframe src=inside.html width=390 height=800 style='border: 0'></iframe></body>"
    )
    done = subprocess.run(
        [
            "chromium",
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--virtual-time-budget=8000",
            "--dump-dom",
            frame.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert re.findall(r'data-width="(\d+)"', done.stdout) == ["390"], done.stdout[-500:]


def test_metrics_of_different_units_are_drawn_on_axes_of_their_own(study, page, folder):
    (chart,) = study.results[4].figures
    drawn = panels(chart)
    assert [panel.title for panel in drawn] == [*e05_sparsity.METRICS]
    assert [x for x, _ in drawn[0].series[""]] == ["standard", "V1", "V2"]
    assert drawn[1].series[""][1][1] == dict(chart.series["V1"])["Gini"]
    assert page.count("<div class=panels>") == 1
    section = page.split("<h2 id=test5>")[1].split("<h2 id=test6>")[0]
    assert section.count("plotly-graph-div") == len(e05_sparsity.METRICS)
    accuracy = study.results[3].figures[0]
    assert panels(accuracy) == [accuracy]


def test_every_term_of_a_table_is_defined(study, page):
    defined = " ".join([*WORDS, *WORDS.values()])
    arms = {arm.name for n in PRIMARY for arm in EXPERIMENTS[n].load().arms}
    metrics = [*e05_sparsity.METRICS, *e13_cheap_noise.METRICS, *e15_layers.EDITS]
    others = ["disagreement", "Jensen-Shannon", "FLOPs", "wsd", "decoy", "log-rank", "criterion"]
    for term in [*arms, *metrics, *others]:
        assert term in defined, term
    for name, value, meaning in recipe_rows(study):
        assert meaning, name
        assert "{" not in value
        assert "[" not in value
    assert "may reach below 0 or above 1" in WORDS["interval"]
    assert "<td data-name='setting'>task_options.near</td><td data-name='value'>0.25</td>" in page


def test_published_numbers_cite_their_source(study, page, text):
    for what, published, source, *_ in claim_rows(study):
        assert "arXiv 2" in source or what == "the same by the participation ratio"
        assert f"<td data-name='source'>{escape(source)}</td>" in page
        assert f"| {what} | {published} | {source} |" in text


def test_the_tuning_table_shows_every_k_and_the_edge_of_the_grid(study, text):
    (table,) = study.training
    rows = {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    assert (
        rows["top-k"]["swept option"] == "k = 4: 1.100; k = 8: 1.100; k = 16: 1.100; k = 32: 1.100"
    )
    assert rows["top-k"]["where"] == "at the edge of the grid: k"  # of equal ones the first
    assert (rows["V1"]["swept option"], rows["V1"]["where"]) == ("", "inside the grid")
    assert "at the edge of the grid: k" in text
