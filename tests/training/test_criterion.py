"""Training to a criterion: when a run decays and ends, and that a kill changes neither."""

import itertools
import json
import shutil
import signal
import time
from pathlib import Path

import pytest

from antiphase.training import Criterion, Recipe, criterion_of, resume, train
from antiphase.training.callbacks import read_metrics
from antiphase.training.criterion import CriterionTracker
from antiphase.training.recipe import apply_settings
from antiphase.training.schedule import decay_start, lr_factor
from tests.cli.runner import invoke
from tests.training.small import SMALL, assert_same_end, untimed
from tests.training.test_interruption import start

# reached at the first two evaluations, 10 and 20; the decay takes 15 steps, its end is off the grid
EASY = SMALL.changed(
    criterion=0.05,
    schedule="wsd",
    decay=0.25,
    steps=62,
    lr=1e-2,
    task_options={"length": 16, "needles": 2, "keys": 2, "values": 2, "repeats": 2},
    evaluate_examples=64,
    log_every=1,
    checkpoint_every=5,
    keep=20,
    milestones=[10, 50],
    snapshots=[10, 50],
)
HARD = EASY.changed(criterion=1.0, steps=30, task_options=SMALL.task_options)


@pytest.fixture(scope="module")
def easy(tmp_path_factory) -> Path:
    return train(EASY, tmp_path_factory.mktemp("criterion") / "easy", quiet=True)


@pytest.fixture(scope="module")
def hard(tmp_path_factory) -> Path:
    return train(HARD, tmp_path_factory.mktemp("criterion") / "hard", quiet=True)


def rates(folder: Path) -> list[float]:
    return [line["learning_rate"] for line in read_metrics(folder) if "learning_rate" in line]


def evaluations(folder: Path) -> list[int]:
    return [line["step"] for line in read_metrics(folder) if "held_out_accuracy" in line]


def killed(finished: Path, folder: Path, last: int) -> Path:
    """Return a run that was killed some time after its checkpoint of a step."""
    shutil.copytree(finished, folder)
    shutil.rmtree(folder / "model")
    (folder / "criterion.json").unlink()
    for checkpoint in (folder / "checkpoints").iterdir():
        if int(checkpoint.name.rpartition("-")[2]) > last:
            shutil.rmtree(checkpoint)
    return folder


def test_the_run_decays_after_the_criterion_and_ends_early(easy):
    assert criterion_of(easy) == Criterion(0.05, reached=True, step=10, decay_from=20, end=35)
    assert json.loads((easy / "criterion.json").read_text())["decay_from"] == 20
    assert evaluations(easy) == [10, 20, 30, 35]
    assert read_metrics(easy)[-1]["step"] == 35
    found = [line for line in read_metrics(easy) if "criterion_step" in line]
    assert found == [{"step": 20, "criterion_step": 10}]
    assert (easy / "checkpoints" / "checkpoint-35" / "manifest.json").is_file()
    assert [p.name for p in (easy / "milestones").iterdir()] == ["step10"]
    assert [p.name for p in (easy / "snapshots").iterdir()] == ["step10.npz"]


def test_the_learning_rate_is_constant_until_the_criterion_then_the_decay_of_wsd(easy):
    found = rates(easy)
    assert len(found) == 35
    assert found[2:21] == [EASY.lr] * 19
    assert all(b < a for a, b in itertools.pairwise(found[20:]))
    assert found[20:] == pytest.approx([EASY.lr * lr_factor(s, EASY) for s in range(47, 62)])


def test_a_run_that_does_not_reach_it_is_the_run_without_a_criterion(hard, tmp_path):
    plain = train(HARD.changed(criterion=None), tmp_path / "plain", quiet=True)
    assert_same_end(hard, plain)
    assert criterion_of(hard) == Criterion(1.0, reached=False, step=None, decay_from=23, end=30)
    assert criterion_of(plain) is None
    assert not any("criterion_step" in line for line in read_metrics(hard))


@pytest.mark.parametrize(
    "last",
    [0, 5, 10, 15, 20, 25, 35],
    ids=["no checkpoint", "before", "first", "between", "second", "decay", "end"],
)
def test_killed_in_any_phase_it_ends_the_same(easy, tmp_path, last):
    folder = killed(easy, tmp_path / "r", last)
    assert_same_end(resume(folder, quiet=True), easy)
    assert criterion_of(folder) == criterion_of(easy)
    assert sorted(p.name for p in (folder / "checkpoints").iterdir()) == sorted(
        p.name for p in (easy / "checkpoints").iterdir()
    )


@pytest.mark.parametrize("last", [20, 25, 30], ids=["constant", "decay", "end"])
def test_killed_without_reaching_it_ends_the_same(hard, tmp_path, last):
    folder = killed(hard, tmp_path / "r", last)
    assert_same_end(resume(folder, quiet=True), hard)
    assert criterion_of(folder) == criterion_of(hard)


def test_killed_by_a_signal_before_and_after_the_criterion_it_ends_the_same(tmp_path):
    recipe = EASY.changed(
        steps=1000, evaluate_every=100, checkpoint_every=20, milestones=[], snapshots=[]
    )
    complete, folder = train(recipe, tmp_path / "complete", quiet=True), tmp_path / "r"
    assert criterion_of(complete) == Criterion(0.05, True, 100, 200, 450)
    for step in (60, 220):
        process = start(recipe, folder)
        while process.poll() is None and all(x["step"] < step for x in read_metrics(folder)):
            time.sleep(0.01)
        assert process.poll() is None, process.communicate()
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert not (folder / "criterion.json").exists()
    assert_same_end(resume(folder, quiet=True), complete)
    assert criterion_of(folder) == criterion_of(complete)


def test_a_finished_run_is_not_trained_on(easy):
    before = {p: p.stat().st_mtime_ns for p in easy.rglob("*") if p.is_file()}
    assert resume(easy, quiet=True) == easy
    assert {p: p.stat().st_mtime_ns for p in easy.rglob("*") if p.is_file()} == before


def test_card_and_show_say_how_it_went(easy, hard):
    card = (easy / "README.md").read_text()
    assert "Held-out scores at step 35" in card
    assert "held-out accuracy 0.05 reached at step 10; decay from step 20, end at step 35" in card
    assert "held-out accuracy 1 not reached; decay from step 23" in (hard / "README.md").read_text()
    assert "reached at step 10" in invoke("show", str(easy)).output
    assert json.loads(invoke("show", str(hard), "--json").stdout)["criterion"]["reached"] is False


def track(recipe: Recipe, *accuracies: float) -> CriterionTracker:
    tracker = CriterionTracker(recipe)
    for i, accuracy in enumerate(accuracies, start=1):
        tracker.record(i * recipe.evaluate_every, {"accuracy": accuracy})
    return tracker


HUNDREDS = Recipe(criterion=0.9, schedule="wsd", steps=1000, warmup=0, evaluate_every=100)


@pytest.mark.parametrize(
    ("accuracies", "outcome"),
    [
        ([0.5, 0.9, 0.95], Criterion(0.9, True, 200, 300, 500)),
        ([0.9, 0.5, 0.9, 0.89, 1, 1, 0, 1, 1], Criterion(0.9, True, 500, 600, 800)),
        ([0] * 6 + [1, 1], Criterion(0.9, True, 700, 800, 1000)),
        ([0] * 7 + [1, 1, 1], Criterion(0.9, False, None, 800, 1000)),
        ([float("nan")] * 3, Criterion(0.9, False, None, 800, 1000)),
    ],
    ids=["early", "not in a row", "last chance", "in the decay", "not finite"],
)
def test_it_is_reached_at_two_evaluations_in_a_row_before_the_decay(accuracies, outcome):
    assert track(HUNDREDS, *accuracies).outcome() == outcome


@pytest.mark.parametrize(
    ("changes", "decay_from", "end"),
    [
        ({"warmup": 0.25}, 250, 400),
        ({"warmup": 7}, 200, 399),
        ({"warmup": 0.3, "decay": 0.1}, 300, 370),
        ({"decay": 0}, 200, 200),
    ],
)
def test_warm_up_is_completed_and_the_decay_has_its_length(changes, decay_from, end):
    recipe = HUNDREDS.changed(**changes)
    tracker = track(recipe, 1, 1)
    assert (tracker.decay_from, tracker.end) == (decay_from, end)
    moved = [lr_factor(step, recipe, decay_from) for step in range(decay_from, end)]
    by_schedule = [lr_factor(step, recipe) for step in range(decay_start(recipe), recipe.steps)]
    assert moved == pytest.approx(by_schedule)


@pytest.mark.parametrize("changes", [{"decay": 1}, {"warmup": 2000}], ids=["decay", "warm-up"])
def test_without_a_constant_phase_the_run_is_as_long_as_without_a_criterion(changes):
    assert track(HUNDREDS.changed(**changes), 1, 1, 1).end == HUNDREDS.steps


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["criterion=0", "schedule=wsd"], "criterion: got 0.0, expected an accuracy above 0"),
        (["criterion=99", "schedule=wsd"], "criterion: got 99.0, expected an accuracy above 0"),
        (["criterion=.nan", "schedule=wsd"], "criterion: got nan, expected an accuracy"),
        (["criterion=0.9"], "criterion: begins the decay of schedule wsd, got schedule 'cosine'"),
    ],
)
def test_bad_criteria_say_what_is_allowed(settings, message):
    with pytest.raises(ValueError, match=message):
        apply_settings(Recipe(), settings)


def test_text_has_no_accuracy_to_reach(tmp_path):
    recipe = EASY.changed(task="language", task_options={})
    with pytest.raises(ValueError, match="an accuracy, but task 'language' is scored by its loss"):
        train(recipe, tmp_path / "r", quiet=True)
    assert not (tmp_path / "r").exists()


def test_without_a_decay_it_ends_at_the_criterion(tmp_path):
    recipe = EASY.changed(decay=0.0, milestones=[], snapshots=[])
    folder = train(recipe, tmp_path / "r", quiet=True)
    assert criterion_of(folder) == Criterion(0.05, reached=True, step=10, decay_from=20, end=20)
    assert untimed(folder)[-1]["step"] == 20
    assert_same_end(resume(killed(folder, tmp_path / "killed", 20), quiet=True), folder)
