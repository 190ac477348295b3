"""A study from nothing: trained once, killed and gone on with, judged, and read in a browser."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from antiphase.experiments.arms import Arm
from antiphase.experiments.engine import LocalEngine, train_all
from antiphase.experiments.experiment import STANDARD, V1, Experiment, Measured, base
from antiphase.experiments.registry import EXPERIMENTS, experiments
from antiphase.experiments.report import verdict_rows, write_report
from antiphase.experiments.report.html import write_html
from antiphase.experiments.study import conduct, load
from antiphase.experiments.verdicts import Verdict
from tests.experiments.small import small_lab  # noqa: F401

QUIET = Console(quiet=True)


def study_of(folder: Path, numbers, quick=False, seeds=range(2)):
    found = conduct(
        experiments(numbers, full=False), folder, QUIET, kind="test", quick=quick, seeds=seeds
    )
    found.save(folder)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("lab")


def test_a_quick_study_ends_with_verdicts_and_a_page(small_lab, folder):  # noqa: F811
    study = study_of(folder, None, quick=True)
    ran = {r.number for r in study.results if not r.why_not}
    assert ran == {1, 3, 5, 11, 15}
    assert len(study.results) == len(EXPERIMENTS)
    for result in study.results:
        if result.number in ran:
            assert {p.effect for p in result.predictions} <= set(result.effects)
            assert result.tables
            assert result.pictures
            assert Verdict.NOT_RUN not in result.verdicts()
        else:
            assert set(result.verdicts()) == {Verdict.NOT_RUN}
    assert study.claims
    assert load(folder) == study
    # nothing is trained or measured again
    stamps = {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.name != "results.json"}
    again = study_of(folder, None, quick=True)
    assert {p: p.stat().st_mtime_ns for p in stamps if not p.name.endswith(".lock")} == {
        p: t for p, t in stamps.items() if not p.name.endswith(".lock")
    }
    assert again == study
    write_report(study, folder)
    text = (folder / "report.md").read_text()
    for still in re.findall(r"\((figures/.*?)\)", text):
        assert (folder / still).stat().st_size > 5_000
    assert text.count("(figures/") == sum(len(r.pictures) for r in study.results)
    for row in verdict_rows(study):
        assert "| " + " | ".join(row) + " |" in text


@pytest.mark.slow
def test_every_test_runs(small_lab, folder):  # noqa: F811
    study = study_of(folder, list(EXPERIMENTS))
    for result in study.results:
        assert not result.why_not, (result.number, result.why_not)
        assert {p.effect for p in result.predictions} <= set(result.effects), result.number
        assert result.tables
        assert result.pictures
    write_html(study, folder / "all.html")


def test_a_page_can_be_read_at_two_widths(small_lab, folder, tmp_path):  # noqa: F811
    study = study_of(folder, None, quick=True)
    page = tmp_path / "report.html"
    write_html(study, page)
    text = page.read_text()
    assert "https://" not in text.split("</script>", 1)[1], "the page needs the network"
    for width in (390, 1280):
        picture = tmp_path / f"{width}.png"
        done = subprocess.run(
            [
                "chromium",
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
                f"--window-size={width},2000",
                "--virtual-time-budget=8000",
                "--dump-dom",
                f"--screenshot={picture}",
                page.as_uri(),
            ],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert picture.stat().st_size > 20_000, done.stderr
        assert done.stdout.count("main-svg") >= 3, "the pictures were not drawn"


def test_a_broken_arm_is_told_and_the_rest_goes_on(small_lab, tmp_path, monkeypatch):  # noqa: F811
    class Broken(Experiment):
        number, title, question, predictions = 99, "Broken", "?", ()
        arms = (Arm("odd", base("top_k", attention_options={"k": 0})), STANDARD)

        def measure(self, shelf):
            return Measured({})

    monkeypatch.setitem(EXPERIMENTS, 99, Broken)
    study = conduct([Broken()], tmp_path, QUIET, kind="x", quick=False, seeds=[0])
    result = study.results[-1]
    assert "k: got 0, expected at least 1" in result.why_not
    assert STANDARD.job(0).finished(tmp_path / "trained")


def _is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_killed_study_repeats_no_finished_run(tmp_path):
    """Two runs, the second killed; the lab is started again and ends as if it had not been."""
    script = tmp_path / "run.py"
    script.write_text(
        "import sys\n"
        "from pathlib import Path\n"
        "from rich.console import Console\n"
        "from antiphase.experiments.engine import LocalEngine, train_all\n"
        "from antiphase.experiments.experiment import V1, STANDARD\n"
        "from antiphase.experiments.arms import Job\n"
        "small = dict(model={'hidden_size': 32}, batch_size=4, checkpoint_every=20)\n"
        "if __name__ == '__main__':\n"
        "    jobs = [Job(STANDARD.recipe.changed(steps=20, **small)),\n"
        "            Job(V1.recipe.changed(steps=500, **small))]\n"
        "    train_all(jobs, Path(sys.argv[1]), Console(), LocalEngine(workers=2))\n"
    )
    root = tmp_path / "trained"
    command = [sys.executable, str(script), str(root)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    wanted = ("needle-diff_v1-*/checkpoints/*/manifest.json", "needle-standard-*/model")
    while not all(list(root.glob(pattern)) for pattern in wanted):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 30
    while _is_alive(group := process.pid):  # its workers end with it
        assert time.monotonic() < deadline, os.killpg(group, signal.SIGKILL)
        time.sleep(0.05)
    first = next(root.glob("needle-standard-*/model/model.safetensors"))
    stamp = first.stat().st_mtime_ns
    assert not list(root.glob("needle-diff_v1-*/model"))
    subprocess.run(command, check=True, capture_output=True)
    assert first.stat().st_mtime_ns == stamp
    killed = next(root.glob("needle-diff_v1-*/model/model.safetensors"))
    job_folder = killed.parent.parent
    whole = tmp_path / "whole"
    from antiphase.training import load_recipe, train

    train(load_recipe(str(job_folder / "recipe.yaml")), whole, quiet=True)
    assert (whole / "model" / "model.safetensors").read_bytes() == killed.read_bytes()


def test_two_labs_do_not_train_the_same_run_twice(small_lab, tmp_path):  # noqa: F811
    job = V1.job(0)
    job.perform(tmp_path)
    stamp = (job.folder(tmp_path) / "model" / "model.safetensors").stat().st_mtime_ns
    job.perform(tmp_path)
    assert (job.folder(tmp_path) / "model" / "model.safetensors").stat().st_mtime_ns == stamp
    assert train_all([job], tmp_path, QUIET, LocalEngine(workers=1)) == {}


def test_a_run_is_named_by_what_decides_its_outcome(monkeypatch):
    key = V1.job(0).key
    assert key == V1.job(0).key != V1.job(1).key
    from antiphase.attention import DiffV1

    monkeypatch.setattr(DiffV1, "version", 2)
    assert V1.job(0).key != key


def test_a_study_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "results.json").write_text("{")
    with pytest.raises(ValueError, match=r"has no results\.json of a study that can be read"):
        load(tmp_path)
    with pytest.raises(ValueError, match="--only: got 14, the tests are 1, 2, 3"):
        experiments([14], full=False)


def test_results_are_plain_numbers(small_lab, folder):  # noqa: F811
    study_of(folder, None, quick=True)
    kept = json.loads((folder / "results.json").read_text())
    low = kept["results"][0]["effects"]["V1: correlation on I minus on R"]["low"]
    assert np.isfinite(low)
