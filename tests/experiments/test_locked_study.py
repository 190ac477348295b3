"""A study with a lock: it starts if the lock is older than its runs and nothing has changed."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from antiphase.experiments.arms import STANDARD
from antiphase.experiments.grids import Grid
from antiphase.experiments.lock import LockError
from antiphase.experiments.plans import PLANS
from antiphase.experiments.registry import EXPERIMENTS, RegisteredTest
from antiphase.experiments.study import lock_study, run_study
from antiphase.experiments.study_records import kept_runs
from antiphase.training import load_recipe
from tests.experiments.small import (
    RECIPE,
    SMALL,
    InProcess,
    few_examples,  # noqa: F401
    small_run,
)

ROOT = Path(__file__).parents[2]
QUIET = Console(quiet=True)
LOCKED = replace(SMALL, id="locked", tests=(4,), seeds=(600, 601), locked=True)


@pytest.fixture
def untrained(monkeypatch):
    """Let a study end where it would begin to train."""

    def begin(*args):
        raise TrainingBeginsError

    monkeypatch.setattr("antiphase.experiments.study._announce", begin)


class TrainingBeginsError(Exception):
    """A study has passed all checks."""


def start(plan, folder):
    run_study(plan, [EXPERIMENTS[n] for n in plan.tests], folder, QUIET, engine=InProcess())


def plant_run(folder, seed, age=0.0):
    """Write what a run leaves behind that began some seconds ago."""
    path = small_run(STANDARD, seed).folder(folder / "trained") / "recipe.yaml"
    path.parent.mkdir(parents=True)
    path.write_text("")
    began = path.stat().st_mtime - age
    os.utime(path, (began, began))


def test_a_locked_plan_starts_with_its_lock_only(untrained, tmp_path):
    with pytest.raises(LockError, match=r"has no lock\.json; lock the predictions before"):
        start(LOCKED, tmp_path)
    lock = lock_study(LOCKED, tmp_path)
    assert lock == lock_study(LOCKED, tmp_path)  # may be written again
    assert lock["design"]["recipe"]["task_options"] == RECIPE.task_options
    assert set(lock["design"]["arms"]) == {"standard", "V1", "top-k"}
    with pytest.raises(TrainingBeginsError):
        start(LOCKED, tmp_path)
    plant_run(tmp_path, 600)  # a run of the study: it is younger than the lock
    with pytest.raises(TrainingBeginsError):
        start(LOCKED, tmp_path)
    with pytest.raises(TrainingBeginsError):  # a plan that is not locked needs none
        start(replace(LOCKED, locked=False), tmp_path / "other")


def test_a_locked_study_does_not_start_with_another_prediction(untrained, tmp_path, monkeypatch):
    lock_study(LOCKED, tmp_path)
    kind = type(EXPERIMENTS[4].load())
    changed = replace(kind.predictions[0], size=0.01)
    monkeypatch.setattr(kind, "predictions", (changed, *kind.predictions[1:]))
    with pytest.raises(LockError, match=r"test 4, sparsity, .*: size was 0\.05, is 0\.01"):
        start(LOCKED, tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"recipe": RECIPE.changed(task_options={**RECIPE.task_options, "near": 1.0})},
            "in: recipe",
        ),
        ({"grid": Grid()}, "in: tuning"),
        ({"tests": (4, 12)}, "in: arms"),
        ({"seeds": (600, 602)}, "has the seeds 600, 601, got 600, 602"),
        ({"id": "other"}, "is of the study 'locked', not of 'other'"),
    ],
)
def test_a_locked_study_does_not_start_with_another_design(changes, words, untrained, tmp_path):
    lock_study(LOCKED, tmp_path)
    with pytest.raises(LockError, match=words):
        start(replace(LOCKED, **changes), tmp_path)


def test_a_run_that_is_older_than_the_lock_stops_the_study(untrained, tmp_path):
    lock_study(LOCKED, tmp_path)
    plant_run(tmp_path, 7, age=3600)  # of another study
    with pytest.raises(TrainingBeginsError):
        start(LOCKED, tmp_path)
    plant_run(tmp_path, 601, age=3600)
    with pytest.raises(
        LockError, match=r"the run composite_needle-standard-601-.* began before it"
    ):
        start(LOCKED, tmp_path)


def test_a_study_resumes_from_what_the_repository_has(untrained, tmp_path):
    lock = lock_study(LOCKED, tmp_path / "repository")
    runs = kept_runs(tmp_path / "repository", tmp_path / "study")
    assert runs == tmp_path / "repository" / "runs.jsonl"
    assert lock_study(LOCKED, tmp_path / "study") == lock  # of the same time
    with pytest.raises(TrainingBeginsError):
        start(LOCKED, tmp_path / "study")
    lock_study(replace(LOCKED, id="other"), tmp_path / "own")
    kept_runs(tmp_path / "repository", tmp_path / "own")  # a lock is never replaced
    with pytest.raises(LockError, match="is of the study 'other'"):
        start(LOCKED, tmp_path / "own")


def test_the_repository_has_the_locks_of_its_studies():
    """Those of plans whose folder has one agree with the code, so that `--resume` can start."""
    folders = {plan.id: ROOT / plan.kept for plan in PLANS.values() if plan.locked}
    locked = {name for name, folder in folders.items() if (folder / "lock.json").is_file()}
    assert locked >= {"primary", "ladder-nano"}
    for name in locked:
        lock_study(PLANS[name], folders[name])


def test_a_study_whose_seeds_were_used_cannot_be_locked(tmp_path):
    plant_run(tmp_path, 601)
    with pytest.raises(LockError, match=r"with which 1 runs exist already, .*standard-601-"):
        lock_study(LOCKED, tmp_path)
    assert not (tmp_path / "lock.json").exists()
    lock_study(replace(LOCKED, seeds=(200, 201)), tmp_path)


@pytest.mark.usefixtures("few_examples")
def test_a_study_tunes_locks_and_trains_what_it_chose(tmp_path, monkeypatch):
    monkeypatch.setattr("antiphase.experiments.tuning.SQUARE", ((0, 0), (1, 0)))
    entry = RegisteredTest(97, "Two arms", "?", "tests.experiments.small:TwoArmsTest")
    monkeypatch.setitem(EXPERIMENTS, 97, entry)
    grid = Grid(steps=4, extensions=0)
    plan = replace(LOCKED, tests=(97,), seeds=(600,), grid=grid)
    lock = lock_study(plan, tmp_path)
    found = run_study(plan, [entry], tmp_path, QUIET, engine=InProcess())
    assert found.lock == lock
    assert (found.study_id, found.seeds) == ("locked", [600])
    table = found.training[0]
    assert table.title == "Held-out loss of the tuning runs"
    for name, chosen, *_, centre, twice in table.rows:
        rate = "0.001" if float(centre) <= float(twice) else "0.002"
        assert chosen.startswith(f"lr {rate}, branch scale 1")
        (recipe,) = [
            load_recipe(str(path))
            for path in (tmp_path / "trained").glob(f"*-{name.replace('-', '_')}-600-*/recipe.yaml")
        ]
        assert f"{recipe.lr:g}" == rate
        assert recipe.criterion == RECIPE.criterion  # which tuning runs do not have
        if name == "top-k":
            assert f"k={recipe.attention_options['k']}" in chosen
