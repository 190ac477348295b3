"""What the report says about predictions, gates, p, the lock, and the published study."""

import re
from dataclasses import replace

import numpy as np
import pytest

from antiphase.analysis.statistics import Interval, student_t
from antiphase.experiments.experiment import Chart, Heatmap, Table
from antiphase.experiments.lock import new_lock
from antiphase.experiments.report import write_report
from antiphase.experiments.report.findings import (
    counts_line,
    detectable,
    not_tested_line,
    power_line,
    power_rows,
    reading_tallies,
    sentences,
)
from antiphase.experiments.report.html import write_html
from antiphase.experiments.report.interactive import plotly_figure
from antiphase.experiments.report.markdown import as_markdown
from antiphase.experiments.report.published import published_beside
from antiphase.experiments.report.rows import (
    GATE_COLUMNS,
    cell_text,
    gate_rows,
    narrow_verdict_rows,
    not_run_lines,
    other_rows,
    prediction_table,
    recipe_rows,
    status_line,
    verdict_columns,
    verdict_rows,
)
from antiphase.experiments.report.words import WORDS
from antiphase.experiments.results import NOT_SELECTED, Result, Study, load_study
from antiphase.experiments.verdicts import Effect, Prediction, learned
from tests.cli.runner import invoke

GAIN = Effect("accuracy", "V1", versus="standard", condition="under stress")
NOISY = [0.051, 0.049, 0.05, 0.052, 0.048]


def result(number, by_seed=NOISY, accuracy=1.0, **changes):
    predictions = [
        Prediction("cancelling", GAIN, "more", 0.02, "", (learned("V1"),), primary=True),
        Prediction("cancelling", GAIN, "no worse", 0.02, ""),
        Prediction("sparsity", GAIN, "same", 0.02, "", primary=True),
    ]
    effects = {GAIN: student_t(by_seed), learned("V1").effect: student_t([accuracy] * 5)}
    found = Result(number, f"T{number}", "?", predictions, effects, seeds=[0, 1])
    return replace(found, **{"study_id": "first", **changes})


def lock_of(*results):
    lock = new_lock("first", [0, 1], {r.number: r.predictions for r in results}, {})
    return lock | {"commit": "c" * 40, "dirty": True, "time": "2026-11-17T00:00:00+00:00"}


def not_run(number, why=NOT_SELECTED):
    return replace(result(number), effects={}, seeds=[], why_not=why)


def small_study(*results, **changes):
    tests = results or (result(1), result(2, accuracy=0.5), result(3, NOISY[:3]))
    return Study(list(tests), [], [], {}, {"task": "needle", "lr": 0.003}, **changes)


def rows_of(study, number):
    columns, found = prediction_table(study, study.results[number - 1])
    return [dict(zip(columns, map(cell_text, row), strict=True)) for row in found]


def texts(rows):
    return [[cell_text(cell) for cell in row] for row in rows]


def page_of(study, folder, **options):
    write_html(study, folder / "report.html", **options)
    return (folder / "report.html").read_text().split("</script>", 1)[1]


@pytest.fixture
def published(tmp_path, monkeypatch):
    """A published study in which tests 1 and 4 were run."""
    folder = tmp_path / "published"
    folder.mkdir()
    tests = result(1), not_run(2), not_run(3), result(4)
    study = small_study(*tests, lock=lock_of(*tests), seeds=[*range(5)])
    study.save(folder)
    monkeypatch.setattr("antiphase.experiments.report.published.PUBLISHED", folder)
    return study


def test_a_row_has_kind_verdict_and_holm():
    study = small_study()
    first, second, third = rows_of(study, 1)
    assert first["reading"] == "cancelling (primary)"
    assert first["predicted"] == "more than 0, at least 0.02"
    assert first["verdict"] == "✔ supported"
    assert float(first["p"]) < 1e-5
    assert first["survives Holm (p)"].startswith("yes (")
    assert (second["predicted"], second["survives Holm (p)"]) == ("no worse than -0.02", "")
    assert (third["verdict"], third["survives Holm (p)"]) == ("✘ refuted", "no (1)")
    assert not other_rows(study.results[0])  # what a gate measured is not another effect


def test_invalid_rows_have_no_p_and_descriptive_tests_no_column_for_it():
    study = small_study()
    invalid = rows_of(study, 2)[0]
    assert (invalid["verdict"], invalid["p"]) == ("! invalid", "")
    descriptive = rows_of(study, 3)[0]
    assert descriptive["verdict"] == "descriptive"
    assert descriptive["measured"].startswith("0.05 [")
    assert "p" not in descriptive


def test_every_gate_is_shown_once_with_its_number():
    ((gate, what, bound, measured, outcome, of),) = texts(gate_rows(result(1)))
    assert (gate, what, bound) == ("learned", "accuracy: V1, as trained", "≥ 0.99")
    assert (measured, outcome, of) == ("1 [1, 1]", "passed", "1")
    assert texts(gate_rows(result(2, accuracy=0.5)))[0][4] == "FAILED"


def test_only_a_lock_lets_the_report_say_that_predictions_came_first(tmp_path):
    lock = lock_of(result(1), result(2), result(3))
    locked = small_study(lock=lock, study_id="first", seeds=[0, 1])
    exploratory = small_study(study_id="quick", seeds=[0, 1, 2])
    for shown in (as_markdown(locked), page_of(locked, tmp_path)):
        assert "Predictions were written before the runs: study first, locked at 2026-11" in shown
        assert "commit " + "c" * 40 + " (with changes that were not committed)" in shown
        assert lock["digest"] in shown
    for shown in (as_markdown(exploratory), page_of(exploratory, tmp_path)):
        assert "Exploratory: no lock, 3 seeds, no verdicts below 5 seeds." in shown
        assert "were written before" not in shown
    assert status_line(small_study(seeds=[*range(8)])) == "Exploratory: no lock, 8 seeds."


def test_the_page_defines_its_words_and_shows_recipe_gates_and_tables(tmp_path):
    note = "A note that a reader must know."
    tuning = Table("Tuning", ["arm", "loss"], [["V1", student_t([0.1, 0.3])]], "What it says.")
    study = small_study(result(1, notes=[note]), training=[tuning], seeds=[7, 8])
    text, page = as_markdown(study), page_of(study, tmp_path)
    assert "<h2 id=test1>1. T1 †</h2>" in page
    assert "## 1. T1 †" in text
    assert "<td data-name='verdict' class='supported alone'>✔ supported</td>" in page
    assert "title='by seed: 7: 0.1, 8: 0.3'" in page
    for term in ("Q, R, S, I, own", "null", "as trained, stress", "how cells combine", "CMRR"):
        assert f"<dt>{term}</dt>" in page
    for shown in (text, page):
        assert all(part in shown for part in ("0.003", "What it says.", note))
        assert all(column in shown for column in GATE_COLUMNS)
    assert "| lr | 0.003 |" in text
    assert {"agreement", "effective rank", "Gini", "A1, A2, lam"} <= set(WORDS)


def test_tests_that_were_not_run_take_one_line(tmp_path):
    study = small_study(result(1), not_run(2), not_run(3), not_run(4, "V1, seed 0: diverged"))
    failed, others = not_run_lines(study)
    assert failed.startswith("Test 4 (T4), no result: V1, seed 0: diverged; run it with")
    assert others == "Not run: 2 T2, 3 T3; run them with `antiphase lab --only 2,3`."
    assert not_run_lines(study, shown=[2, 3]) == [failed]
    (mixed,) = not_run_lines(small_study(not_run(2), not_run(11), not_run(20)))
    assert "`antiphase lab --only 2`, `antiphase lab --study ladder-nano --only 11,20`" in mixed
    page = page_of(study, tmp_path)
    assert page.count("<h2 id=test") == 1
    assert "Not run: 2 T2, 3 T3; run them with <code>antiphase lab --only 2,3</code>." in page
    for shown in (page, as_markdown(study)):
        assert "not run" not in shown


def test_each_test_is_a_sentence_with_its_reason():
    study = small_study(
        result(1),
        result(2, accuracy=0.5),
        result(3, NOISY[:3]),
        not_run(4, "V1, seed 0: diverged"),
        not_run(5),
    )
    assert counts_line(study) == (
        "Exploratory, no lock: 6 primary predictions in 3 tests: 1 supported, 2 refuted, 1 invalid "
        "(a gate failed, or withdrawn), 2 without a verdict (fewer than 5 seeds)."
    )
    one, two, three, four = sentences(study)
    name = "accuracy: V1 minus standard, under stress"
    assert one.text() == (
        f"The test supports cancelling ({name} = {student_t(NOISY)}, 5 seeds; predicted: more than "
        "0, at least 0.02; survives Holm); it refutes sparsity (the same effect; predicted: within "
        "±0.02)."
    )
    assert two.text().startswith(
        "The test is invalid for cancelling (failed gate learned: accuracy: V1, as trained = 0.5, "
        f"must be ≥ 0.99; {name} = 0.05 ["
    )
    assert three.text().startswith("The test has no verdict on cancelling (")
    assert "], 3 seeds; predicted" in three.text()
    assert (four.text(), four.clauses) == ("Not tested: V1, seed 0: diverged.", ())
    assert not_tested_line(study) == "Not tested here: 5 T5."
    assert reading_tallies(study)["sparsity"] == "2 refuted, 1 without a verdict"
    locked = small_study(result(1), lock=lock_of(result(1)))
    assert counts_line(locked) == "2 primary predictions in 1 test: 1 supported, 1 refuted."
    assert counts_line(small_study(not_run(1))) == "No prediction was tested."


def test_a_verdict_that_was_withdrawn_is_shown_as_such(tmp_path):
    kept, void = result(1), result(2, void={"cancelling": "there was no room"})
    study = small_study(kept, void, lock=lock_of(kept, void))
    assert counts_line(study).startswith("4 primary predictions in 2 tests: 1 supported, 2 refuted")
    clause = sentences(study)[1].clauses[0]
    assert str(clause).startswith("is invalid for cancelling (withdrawn: there was no room; ")
    assert texts(verdict_rows(study))[2][2].endswith("], withdrawn")
    assert [row[-1] for row in texts(power_rows(study))] == ["yes", "yes", "invalid", "yes"]
    assert (2, "cancelling") not in study.adjusted_p()
    assert study.adjusted_p()[1, "cancelling"] == 4 * kept.judgements()[0].p  # it counts with p = 1
    study.save(tmp_path)
    assert load_study(tmp_path) == study


def test_the_verdict_on_a_secondary_prediction_is_withdrawn_by_its_effect():
    whole = result(1)
    index, secondary = next((i, p) for i, p in enumerate(whole.predictions) if not p.primary)
    void = result(1, void={str(secondary.effect): "it was confounded"})
    changed = [a != b for a, b in zip(whole.judgements(), void.judgements(), strict=True)]
    assert [i for i, differs in enumerate(changed) if differs] == [index]
    assert void.judgements()[index].void == "it was confounded"


def test_what_can_be_detected_follows_from_the_spread():
    """80% of simulated studies tell a true difference of that size from 0."""
    rng = np.random.default_rng(0)
    spread, seeds = 0.03, 8
    error = spread / np.sqrt(seeds)
    interval = Interval(0, -2.365 * error, 2.365 * error, seeds)
    least = detectable(interval)
    told = [student_t(rng.normal(least, spread, seeds)).low > 0 for _ in range(4000)]
    assert np.mean(told) == pytest.approx(0.8, abs=0.03)
    wide = [0.2, -0.1, 0.15, -0.05, 0.05]
    study = small_study(result(1), result(2, wide), result(3, accuracy=0.5))
    rows = texts(power_rows(study))
    half = (student_t(wide).high - student_t(wide).low) / 2
    assert rows[0][:3] == ["1. T1", "cancelling", "0.02"]
    assert rows[2][3] == f"{half:.2g}"
    assert [row[-1] for row in rows] == ["yes", "yes", "no", "no", "invalid", "yes"]
    assert power_line(study).startswith("For 3 of 5 primary predictions whose gates held")
    assert "| 2. T2 | cancelling | 0.02 | 0.16 |" in as_markdown(study)


def test_inner_options_of_the_recipe_are_settings():
    recipe = {"a": {"b": {"c": 1}, "d": [1, 2]}, "compile": False, "lr": 0.1, "none": {}, "e": None}
    study = replace(small_study(), recipe=recipe)
    assert [row[:2] for row in texts(recipe_rows(study))] == [
        ["a.b.c", "1"],
        ["a.d", "1, 2"],
        ["compile", "no"],
        ["lr", "0.1"],
    ]


def test_heatmaps_of_one_unit_share_their_colours():
    weak, strong, other = (
        Heatmap("h", "x", "y", ["a"], ["b"], [[value]], unit)
        for value, unit in ((0.1, "nats"), (-0.5, "nats"), (9.0, "dB"))
    )
    drawn = plotly_figure(weak, beside=[weak, strong, other])
    assert (drawn.data[0].zmin, drawn.data[0].zmax) == (-0.5, 0.5)


def test_without_a_published_study_the_table_has_what_was_measured():
    study = small_study(result(1, NOISY[:3]), not_run(2), seeds=[0, 1, 2])
    assert verdict_columns() == ["test", "reading", "measured here", "prediction"]
    first, second = texts(verdict_rows(study))
    assert first[:2] == ["1. T1", "cancelling"]
    assert re.fullmatch(r"0\.05 \[0\.0475, 0\.0525\], exploratory", first[2])
    assert first[3] == "accuracy: V1 minus standard, under stress: more than 0, at least 0.02"
    assert second[:2] == ["", "sparsity"]
    failed = texts(verdict_rows(small_study(result(1, NOISY[:3], accuracy=0.5))))
    assert failed[0][2].endswith("exploratory, failed gates: learned")
    lock = lock_of(result(1))
    locked = texts(verdict_rows(small_study(result(1), lock=lock)))
    assert locked[0][2].startswith("✔ supported: 0.05 [")
    assert "exploratory" not in locked[0][2]
    # a lock speaks for its own study and seeds only
    for changes in ({"study_id": "quick"}, {"seeds": [5, 6]}):
        other = texts(verdict_rows(small_study(result(1, **changes), lock=lock)))
        assert other[0][2].endswith("], exploratory")


def test_the_published_study_stands_beside_what_was_measured(published, tmp_path):
    study = small_study(not_run(1), result(2, NOISY[:3]), not_run(3), not_run(4), seeds=[0, 1, 2])
    beside = published_beside(study)
    assert beside == published
    assert published_beside(published) is None  # not beside itself
    rows = texts(verdict_rows(study, beside))
    assert [row[0] for row in rows if row[0]] == ["1. T1", "2. T2", "4. T4"]
    assert rows[0][2].startswith("✔ supported: 0.05 [")
    assert f"Published study: {counts_line(published)}" in as_markdown(study, beside)
    assert rows[0][3] == ""
    assert rows[2][2] == ""
    assert rows[2][3].endswith("], exploratory")
    narrow = texts(narrow_verdict_rows(study, beside))
    assert narrow[0][2:] == ["✔ supported", ""]
    assert narrow[2][3].startswith("accuracy: V1 minus standard, under stress: 0.05 [")
    write_report(study, tmp_path)
    for name in ("report.md", "report.html"):
        shown = (tmp_path / name).read_text().split("</script>", 1)[-1]
        assert all(cell in shown for row in rows for cell in row)


def test_the_terminal_shows_one_table_beside_the_published_study(published, tmp_path):
    study = small_study(not_run(1), result(2, NOISY[:3]), not_run(3), not_run(4), seeds=[0, 1, 2])
    study.save(tmp_path)
    shown = invoke("lab", "--report", str(tmp_path), env={"COLUMNS": "80"})
    assert shown.exit_code == 0, shown.output
    assert shown.output.count("┏") == 1  # not split into blocks of columns
    assert max(map(len, shown.output.split("└")[0].splitlines())) <= 80
    assert "not run" not in shown.output
    for part in ("✔ supported", "exploratory", "Not run: 3 T3;", "report.html"):
        assert part in shown.output
    assert "No other published study" not in shown.output


def test_the_terminal_says_if_no_published_study_ships(tmp_path, monkeypatch):
    monkeypatch.setattr("antiphase.experiments.report.published.PUBLISHED", tmp_path / "none")
    small_study(result(1)).save(tmp_path)
    shown = invoke("lab", "--report", str(tmp_path))
    assert "No other published study is shown beside it." in shown.output


def test_a_report_elsewhere_has_the_numbers_too(tmp_path):
    (tmp_path / "study").mkdir()
    small_study(result(1)).save(tmp_path / "study")
    shown = invoke("lab", "--report", str(tmp_path / "study"), "--out", str(tmp_path / "published"))
    assert shown.exit_code == 0, shown.output
    assert load_study(tmp_path / "published").results == load_study(tmp_path / "study").results


def test_charts_show_the_value_of_each_seed():
    points = [("V1", student_t([0.1, 0.3])), ("V2", student_t([0.2, 0.2]))]
    drawn = plotly_figure(Chart("c", "", "y", {"one": points}, "bars"), seeds=[7, 8])
    dots = drawn.data[1]
    assert list(dots.y) == [0.1, 0.3, 0.2, 0.2]
    assert list(dots.text) == ["seed 7", "seed 8"] * 2


def test_a_report_is_drawn_again_from_what_is_stored(tmp_path):
    figures = [
        Chart("c", "x", "y", {"one": [(0, student_t([1.0, 2.0]))]}),
        Heatmap("h", "x", "y", ["a"], ["b"], [[0.5]]),
    ]
    study = small_study(result(1, figures=figures), seeds=[0, 1])
    study.save(tmp_path)
    assert load_study(tmp_path) == study
    write_report(load_study(tmp_path), tmp_path)
    for name in re.findall(r"\((figures/.*?)\)", (tmp_path / "report.md").read_text()):
        assert (tmp_path / name).stat().st_size > 2_000
