"""What the report says about predictions, gates, p and the lock."""

from antiphase.analysis.statistics import student_t
from antiphase.experiments.experiment import Table
from antiphase.experiments.report.html import write_html
from antiphase.experiments.report.markdown import as_markdown
from antiphase.experiments.report.rows import (
    PREDICTION_COLUMNS,
    cell_text,
    lock_line,
    other_rows,
    prediction_rows,
)
from antiphase.experiments.results import Result, Study
from antiphase.experiments.verdicts import Effect, Prediction, learned

GAIN = Effect("accuracy", "V1", versus="standard", condition="under stress")
NOISY = [0.051, 0.049, 0.05, 0.052, 0.048]
LOCK = {
    "study_id": "first",
    "seeds": [10, 11],
    "digest": "d" * 64,
    "commit": "c" * 40,
    "dirty": True,
    "time": "2026-11-17T00:00:00+00:00",
}


def result(number, by_seed, accuracy):
    predictions = [
        Prediction("cancelling", GAIN, "more", 0.02, "", (learned("V1"),), primary=True),
        Prediction("cancelling", GAIN, "no worse", 0.02, ""),
        Prediction("sparsity", GAIN, "same", 0.02, "", primary=True),
    ]
    effects = {GAIN: student_t(by_seed), learned("V1").effect: student_t([accuracy] * 5)}
    return Result(number, f"T{number}", "?", predictions, effects, seeds=[0, 1])


def small_study(**changes):
    tests = [result(1, NOISY, 1.0), result(2, NOISY, 0.5), result(3, NOISY[:3], 1.0)]
    return Study(tests, [], [], {}, {}, **changes)


def rows_of(study, number):
    found = prediction_rows(study, study.results[number - 1])
    return [dict(zip(PREDICTION_COLUMNS, map(cell_text, row), strict=True)) for row in found]


def test_a_row_has_kind_gates_verdict_and_holm():
    study = small_study()
    first, second, third = rows_of(study, 1)
    assert first["reading"] == "cancelling (primary)"
    assert first["predicted"] == "more than 0, at least 0.02"
    assert first["gates"] == "learned passed: accuracy: V1, as trained = 1 (≥ 0.99)"
    assert first["verdict"] == "✔ supported"
    assert float(first["p"]) < 1e-5
    assert first["survives Holm (p)"].startswith("yes (")
    assert (second["predicted"], second["survives Holm (p)"]) == ("no worse than -0.02", "")
    assert (third["verdict"], third["survives Holm (p)"]) == ("✘ refuted", "no (1)")
    assert not other_rows(study.results[0])  # what a gate measured is not another effect


def test_invalid_and_descriptive_rows_have_no_p():
    study = small_study()
    invalid = rows_of(study, 2)[0]
    assert (invalid["verdict"], invalid["p"]) == ("! invalid", "")
    assert invalid["gates"] == "learned FAILED: accuracy: V1, as trained = 0.5 (≥ 0.99)"
    descriptive = rows_of(study, 3)[0]
    assert (descriptive["verdict"], descriptive["p"]) == ("descriptive", "")
    assert descriptive["measured"].startswith("0.05 [")


def test_the_page_and_the_markdown_show_lock_tuning_and_verdicts(tmp_path):
    tuning = Table("Tuning", ["arm", "learning rate"], [["V1", "0.003"]])
    study = small_study(lock=LOCK, training=[tuning], study_id="first", seeds=[10, 11])
    text = as_markdown(study)
    write_html(study, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "<td class=invalid>! invalid</td>" in page
    assert "<td class=descriptive>descriptive</td>" in page
    for shown in (text, page):
        assert lock_line(study) in shown
        assert "0.003" in shown
    assert "commit " + "c" * 40 + " (with changes that were not committed)" in text
    assert "| 2. T2 | ! invalid | ✘ refuted |  |" in text
    assert "not locked before the runs" in as_markdown(small_study())
