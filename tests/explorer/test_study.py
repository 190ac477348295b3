"""The study and training views as data, and the page that a study's report links."""

import json
from dataclasses import replace

import pytest
from rich.console import Console

from antiphase.experiments import report
from antiphase.experiments.registry import EXPERIMENTS
from antiphase.experiments.results import load_study
from antiphase.experiments.study import run_study
from antiphase.experiments.verdicts import READINGS
from antiphase.explorer.models import model_entry
from antiphase.explorer.save import save_study_page
from antiphase.explorer.study import StudyView
from antiphase.explorer.training import MAX_POINTS, TrainingView, agreement, series
from tests.cli.runner import invoke
from tests.experiments.small import SMALL, InProcess, few_examples  # noqa: F401


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A study of one test on tiny models: three arms, one seed."""
    found = tmp_path_factory.mktemp("lab")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("EXAMPLES", "SEQUENCES"):
            patch.setattr(f"antiphase.experiments.model_measurements.{name}", 6)
        plan = replace(SMALL, tests=(1,), seeds=(0,))
        study = run_study(plan, [EXPERIMENTS[1]], found, Console(quiet=True), engine=InProcess())
    study.save(found)
    return found


def test_the_published_study_is_a_table_of_verdicts():
    view = StudyView()
    table = view.table()
    assert [reading["name"] for reading in table["readings"]] == list(READINGS)
    cells = {row["test"]: row["cells"] for row in table["rows"]}
    study = view.study
    for result in (r for r in study.results if not r.why_not):
        for cell, reading in zip(cells[result.number], READINGS, strict=True):
            verdict = result.about(reading)
            assert (cell and cell["verdict"]) == (verdict and verdict.value)
    assert view.entries() == []
    json.dumps(table)


def test_behind_a_verdict_are_its_numbers():
    models = {name: model_entry(name) for name in ("standard", "diff_v1")}
    found = StudyView().test(15, models)
    assert found["by_seed"]["columns"] == ["effect", *(f"seed {s}" for s in range(100, 108))]
    assert {arm["name"]: arm["models"] for arm in found["arms"]} == {
        "standard": ["standard"],
        "V1": ["diff_v1"],
        "V2": [],
    }
    assert found["figures"]
    assert found["readings"].count("cancelling") == 2
    json.dumps(found, allow_nan=False)
    with pytest.raises(ValueError, match="test: got 99, the study has 1, 4"):
        StudyView().test(99, models)


def test_the_arms_of_a_study_folder_are_models(folder):
    view = StudyView(folder)
    entries = {entry.name: entry for entry in view.entries()}
    assert set(entries) == {"standard, seed 0", "V1, seed 0", "V2, seed 0"}
    assert "diff_v1" in entries["V1, seed 0"].source
    found = view.test(1, entries)
    assert [arm["models"] for arm in found["arms"]] == [
        ["standard, seed 0"],
        ["V1, seed 0"],
        ["V2, seed 0"],
    ]


def test_keys_of_a_study_are_names_not_paths(folder, tmp_path):
    """A results.json may be anyone's: its keys must not lead out of the folder."""
    study = load_study(folder)
    for result in study.results:
        result.keys = [f"../../{key}" if i else key for i, key in enumerate(result.keys)]
    study.save(tmp_path)
    assert StudyView(tmp_path).entries() == []


def test_the_report_links_the_page_and_the_lab_names_it(folder):
    done = invoke("lab", "--report", str(folder))
    assert done.exit_code == 0, done.output
    assert f"wrote {folder / report.EXPLORER}" in done.output.replace("\n", "")
    assert f"<a href='{report.EXPLORER}'>" in (folder / "report.html").read_text()
    page = (folder / report.EXPLORER).read_text()
    assert "V1, seed 0" in page
    assert len(page) < 8e6


def test_without_models_there_is_no_page(tmp_path):
    StudyView().study.save(tmp_path)
    assert save_study_page(tmp_path) is None
    assert not (tmp_path / report.EXPLORER).exists()


def test_the_training_view_of_a_run(folder):
    run = next((folder / "trained").glob("*-diff_v1-0-*/recipe.yaml")).parent
    entry = model_entry(str(run))
    view = TrainingView()
    first = view.run(entry)
    assert first["milestones"] == [0, 4, 8]
    assert not first["complete"], "the agreement of one milestone is computed per call"
    view.run(entry)
    found = view.run(entry)
    assert found["complete"]
    assert found["finished"]
    assert [point[0] for point in found["agreement"]["layer 0"]] == [0, 4, 8]
    assert {"loss", "lam_0", "lam_1"} <= set(found["series"])
    from antiphase.explorer.models import load_model

    final = agreement(load_model(entry, 8))
    assert found["agreement"]["layer 1"][-1] == [8, final[1]]
    json.dumps(found, allow_nan=False)
    with pytest.raises(ValueError, match="was not trained by a run"):
        view.run(model_entry("diff_v1"))


def test_series_are_thinned_and_keep_their_end():
    lines = [{"step": i, "loss": 1.0, "lam_0": 0.5, "epoch": 1, "text": "x"} for i in range(5001)]
    found = series(lines)
    assert set(found) == {"loss", "lam_0"}
    assert len(found["loss"]) <= MAX_POINTS + 1
    assert found["loss"][-1][0] == 5000
