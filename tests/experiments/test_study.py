"""A study from nothing: trained once, killed and resumed, judged, and shown in a browser."""

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from antiphase.experiments.arms import (
    STANDARD,
    V1,
    V2,
    Arm,
    Settings,
    TrainingRun,
    arm_recipe,
)
from antiphase.experiments.e18_arithmetic import ARITHMETIC
from antiphase.experiments.leases import LEASES
from antiphase.experiments.local_pool import LocalEngine
from antiphase.experiments.published_claims import SOURCES
from antiphase.experiments.registry import EXPERIMENTS, RegisteredTest
from antiphase.experiments.report import cell_text, published_beside, verdict_rows, write_report
from antiphase.experiments.report.html import write_html
from antiphase.experiments.report.static import figure_names
from antiphase.experiments.results import load_study
from antiphase.experiments.study import _announce, distinct_arms, run_study
from antiphase.experiments.train_all import train_all
from antiphase.experiments.verdicts import UnmeasuredEffectError, Verdict
from antiphase.training import load_recipe, train
from tests.experiments.small import (
    RECIPE,
    SMALL,
    InProcess,
    SameNameTest,
    few_examples,  # noqa: F401
    small_run,
)

QUIET = Console(quiet=True)
pytestmark = pytest.mark.usefixtures("few_examples")


def study_of(folder: Path, numbers=SMALL.tests, **plan):
    tests = [EXPERIMENTS[number] for number in numbers]
    found = run_study(replace(SMALL, **plan), tests, folder, QUIET, engine=InProcess())
    found.save(folder)
    return found


def test_what_a_study_costs_is_one_line_in_a_narrow_console():
    said = Console(file=io.StringIO(), width=40)
    _announce(SMALL, [STANDARD, V1], 2, said)
    (line,) = said.file.getvalue().splitlines()
    assert "2 arms x 2 seeds = 4 runs" in line
    assert "on 2 cores" in line


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("lab")


def test_a_quick_study_ends_with_verdicts_and_a_page(folder):
    study = study_of(folder)
    ran = {r.number for r in study.results if not r.why_not}
    assert ran == set(SMALL.tests)
    assert len(study.results) == len(EXPERIMENTS)
    for result in study.results:
        if result.number in ran:
            assert {e for p in result.predictions for e in p.required} <= set(result.effects)
            assert result.tables
            assert result.figures
            found = {judgement.verdict for judgement in result.judgements()}
            assert found <= {Verdict.INVALID, Verdict.DESCRIPTIVE}  # 2 seeds that learned nothing
            assert all(len(i.by_seed) == i.seeds == 2 for i in result.effects.values())
        else:
            assert all(j.verdict is Verdict.NOT_RUN for j in result.judgements())
    assert {claim.what for claim in study.claims} == {*SOURCES}
    assert study.results[0].arms["standard"].split(", ")[0] == "attention=standard"
    assert not any("{" in recipe for r in study.results for recipe in r.arms.values())
    assert [table.title.split()[0] for table in study.training] == ["Steps", "RMS", "Cost"]
    assert load_study(folder) == study
    # nothing is trained or measured again
    paths = [p for p in folder.rglob("*") if p.name not in ("results.json", LEASES)]
    stamps = {p: p.stat().st_mtime_ns for p in paths}
    again = study_of(folder)
    assert {p: p.stat().st_mtime_ns for p in paths} == stamps
    assert again == study
    write_report(study, folder)
    text = (folder / "report.md").read_text()
    for figure in re.findall(r"\((figures/.*?)\)", text):
        assert (folder / figure).stat().st_size > 5_000
    for result in study.results:
        assert all(f"(figures/{name})" in text for name in figure_names(result))
    for row in verdict_rows(study, published_beside(study)):
        assert "| " + " | ".join(map(cell_text, row)) + " |" in text


def test_a_study_keeps_the_results_of_other_tests(folder, monkeypatch):
    quick = study_of(folder)
    only = study_of(folder, [15], id="other", seeds=(0,))
    assert {r.number for r in only.results if not r.why_not} == set(SMALL.tests)
    for before, after in zip(quick.results, only.results, strict=True):
        if before.number == 15:
            assert (after.study_id, after.seeds) == ("other", [0])
            assert all(i.seeds == 1 for i in after.effects.values())
        else:
            assert after == before
    assert (len(only.claims), only.claims_seeds) == (len(quick.claims), [0])
    write_report(only, folder)
    text = (folder / "report.md").read_text()
    assert "Tests 1, 5, 7: study 'small', seeds 0, 1. Test 15: study 'other', seeds 0." in text
    # a prediction that is changed after its data were seen is marked
    kind = type(EXPERIMENTS[1].load())
    changed_prediction = replace(kind.predictions[0], size=0.5)
    with monkeypatch.context() as patch:
        patch.setattr(kind, "predictions", (changed_prediction, *kind.predictions[1:]))
        marked = study_of(folder, [15], id="other", seeds=(0,)).results[0]
    assert "changed after it was measured" in marked.notes[-1]
    # a result of another version of a test is left out, and the study says so
    test = EXPERIMENTS[5].load()
    monkeypatch.setattr(type(test), "version", 99)
    changed = study_of(folder, [15], id="other", seeds=(0,))
    assert "measured earlier with other arms or another version" in changed.results[4].why_not


def test_a_predicted_effect_that_was_not_measured_raises(folder, monkeypatch):
    location = "tests.experiments.small:MistypedTest"
    mistyped = RegisteredTest(98, "Mistyped", "?", location)
    monkeypatch.setitem(EXPERIMENTS, 98, mistyped)
    with pytest.raises(UnmeasuredEffectError) as error:
        study_of(folder, [98])
    for part in ("test 98 (Mistyped)", "acuracy", "'accuracy'"):
        assert part in str(error.value)


@pytest.mark.slow
def test_every_test_runs(folder, monkeypatch):
    """Those on text are in `test_text_tests.py`."""
    monkeypatch.setitem(ARITHMETIC, "steps", RECIPE.steps)
    numbers = [n for n, test in EXPERIMENTS.items() if not test.text]
    study = study_of(folder, numbers)
    for result in (r for r in study.results if r.number in numbers):
        assert not result.why_not, (result.number, result.why_not)
        assert {e for p in result.predictions for e in p.required} <= set(result.effects)
        assert result.tables
        assert result.figures
    write_html(study, folder / "all.html")


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
@pytest.mark.parametrize("width", [390, pytest.param(1280, marks=pytest.mark.slow)])
def test_a_page_can_be_read_at_two_widths(width, folder, tmp_path):
    study = study_of(folder)
    page = tmp_path / "report.html"
    write_html(study, page)
    text = page.read_text()
    assert "https://" not in text.split("</script>", 1)[1], "the page needs the network"
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
    assert done.stdout.count("main-svg") >= 3, "the figures were not drawn"


def test_a_broken_arm_is_reported_and_the_others_are_trained(tmp_path, monkeypatch):
    broken = RegisteredTest(99, "Broken", "?", "tests.experiments.small:BrokenTest")
    monkeypatch.setitem(EXPERIMENTS, 99, broken)
    result = study_of(tmp_path, [99], seeds=(0,)).results[-1]
    assert "k: got 0, expected at least 1" in result.why_not
    assert small_run(STANDARD).finished(tmp_path / "trained")


def _is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def two_runs() -> list[TrainingRun]:
    """Return a short run, and a longer one that is to be killed; a worker begins with the first."""
    longer = {"checkpoint_every": 20, "log_every": 20, "evaluate_every": 1000, "milestones": []}
    return [
        small_run(STANDARD, steps=30, batch_size=32, **longer),
        small_run(V1, steps=200, batch_size=4, **longer),
    ]


@pytest.mark.slow  # test_killed_study.py kills a study among the fast tests
def test_a_killed_study_repeats_no_finished_run(tmp_path):
    """Two runs, the second killed; the lab is started again and ends as if it had not been."""
    script = tmp_path / "run.py"
    script.write_text(
        "import sys\n"
        "from pathlib import Path\n"
        "from rich.console import Console\n"
        "from antiphase.experiments.local_pool import LocalEngine\n"
        "from antiphase.experiments.train_all import train_all\n"
        "from tests.experiments.test_study import two_runs\n"
        "if __name__ == '__main__':\n"
        "    train_all(two_runs(), Path(sys.argv[1]), Console(), LocalEngine(workers=1))\n"
    )
    root = tmp_path / "trained"
    process = subprocess.Popen(
        [sys.executable, str(script), str(root)],
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    wanted = (
        "composite_needle-diff_v1-*/checkpoints/*/manifest.json",
        "composite_needle-standard-*/model",
    )
    while not all(list(root.glob(pattern)) for pattern in wanted):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 30
    while _is_alive(group := process.pid):  # its workers end with it
        assert time.monotonic() < deadline, os.killpg(group, signal.SIGKILL)
        time.sleep(0.05)
    first = next(root.glob("composite_needle-standard-*/model/model.safetensors"))
    stamp = first.stat().st_mtime_ns
    assert not list(root.glob("composite_needle-diff_v1-*/model"))
    assert train_all(two_runs(), root, QUIET, InProcess()) == {}
    assert first.stat().st_mtime_ns == stamp
    killed = next(root.glob("composite_needle-diff_v1-*/model/model.safetensors"))
    run_folder = killed.parent.parent
    uninterrupted = tmp_path / "uninterrupted"
    train(load_recipe(str(run_folder / "recipe.yaml")), uninterrupted, quiet=True)
    assert (uninterrupted / "model" / "model.safetensors").read_bytes() == killed.read_bytes()


def test_two_labs_do_not_train_the_same_run_twice(tmp_path):
    run = small_run(V1)
    run.perform(tmp_path)
    stamp = (run.folder(tmp_path) / "model" / "model.safetensors").stat().st_mtime_ns
    run.perform(tmp_path)
    assert (run.folder(tmp_path) / "model" / "model.safetensors").stat().st_mtime_ns == stamp
    assert train_all([run], tmp_path, QUIET, LocalEngine(workers=1)) == {}


def test_a_run_is_named_by_what_decides_its_outcome(monkeypatch):
    key = small_run(V1).key
    assert key == small_run(V1).key
    others = (small_run(V1, 1), small_run(V2), small_run(V1, lr=2e-3), small_run(V1, task="needle"))
    assert len({key, *(run.key for run in others)}) == 5
    from antiphase.attention import DiffV1

    monkeypatch.setattr(DiffV1, "version", 2)
    assert small_run(V1).key != key


def test_a_study_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "results.json").write_text("{")
    with pytest.raises(ValueError, match=r"has no results\.json of a study that can be read"):
        load_study(tmp_path)


def test_a_study_of_an_earlier_format_says_what_to_do(tmp_path):
    old = {"results": [], "claims": [], "claims_seeds": [], "environment": {}, "recipe": {}}
    (tmp_path / "results.json").write_text(json.dumps(old))
    with pytest.raises(ValueError, match=r"has format 1, .* Run the study again: antiphase lab"):
        load_study(tmp_path)


def test_results_are_plain_numbers(folder):
    study_of(folder)
    kept = json.loads((folder / "results.json").read_text())
    found = {e["effect"]["metric"]: e["interval"] for e in kept["results"][0]["effects"]}
    interval = found["corr(log A1, log A2) over sequences, on I minus on R"]
    assert np.isfinite(interval["low"])
    assert np.mean(interval["by_seed"]) == pytest.approx(interval["mean"])


def test_a_listing_imports_no_test():
    code = (
        "import sys\n"
        "from antiphase.experiments.registry import EXPERIMENTS\n"
        "assert EXPERIMENTS[1].title and EXPERIMENTS[1].question\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "numpy", "transformers"} & set(done.stdout.split())


@pytest.mark.parametrize("test", EXPERIMENTS.values(), ids=lambda test: test.title)
def test_every_entry_of_the_registry_loads(test):
    assert test.location.startswith(f"antiphase.experiments.e{test.number:02}_")
    assert test.load().predictions or test.text  # two of these describe, and predict nothing


def test_all_arms_of_the_lab_have_names_of_their_own():
    tests = [test.load() for test in EXPERIMENTS.values()]
    arms = distinct_arms(tests)
    assert len({arm.name for arm in arms}) == len(arms)
    with pytest.raises(ValueError, match="two different arms are called 'standard'; rename one"):
        distinct_arms([*tests, SameNameTest()])


def test_arms_train_their_own_recipe_at_their_own_settings():
    arm = Arm("odd", "top_k", {"k": 8}, changes={"batch_size": 2, "criterion": None})
    recipe = arm_recipe(RECIPE, arm, Settings(3e-3, 0.5, {"k": 4}))
    assert (recipe.attention, recipe.attention_options) == ("top_k", {"k": 4})
    assert (recipe.lr, recipe.batch_size, recipe.criterion) == (3e-3, 2, None)
    assert recipe.model == {**RECIPE.model, "branch_scale": 0.5}
    same = ("task", "task_options", "steps", "schedule", "milestones")
    assert all(getattr(recipe, name) == getattr(RECIPE, name) for name in same)
