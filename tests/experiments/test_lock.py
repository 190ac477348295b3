"""The lock of a study: written before its runs, and compared with the study afterwards."""

import json
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from antiphase.experiments import lock
from antiphase.experiments.lock import LOCK, LockError, check_lock, read_lock, write_lock
from antiphase.experiments.verdicts import Effect, Prediction, learned, noise

GAIN = Effect("accuracy", "V1", versus="standard", condition="under stress")
MORE = Prediction("cancelling", GAIN, "more", 0.02, "less noise", (learned("V1"),), primary=True)
SAME = Prediction("sparsity", GAIN, "same", 0.02, "no slope", primary=True)
PREDICTIONS = {7: [MORE, SAME]}
SEEDS = range(10, 18)
DESIGN = {"recipe": {"lr": 1e-3}, "arms": {"top-k": {"sweep": {"k": (2, 4)}}}, "tuning": None}


@pytest.fixture
def folder(tmp_path):
    write_lock("first", SEEDS, PREDICTIONS, DESIGN, tmp_path / "study")
    return tmp_path / "study"


def test_a_lock_says_what_was_predicted_on_which_code_and_when(folder):
    found = read_lock(folder)
    assert (found["study_id"], found["seeds"]) == ("first", list(SEEDS))
    assert {p["reading"] for p in found["predictions"]["7"]} == {"cancelling", "sparsity"}
    assert len(found["digest"]) == 64
    assert found["commit"] == "unknown" or len(found["commit"]) == 40
    age = datetime.now(timezone.utc) - datetime.fromisoformat(found["time"])
    assert timedelta(0) <= age < timedelta(minutes=1)
    later = datetime.now(timezone.utc) + timedelta(seconds=1)
    assert check_lock("first", SEEDS, PREDICTIONS, DESIGN, folder, [("run", later)]) == found


def test_code_outside_a_git_tree_is_unknown(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")  # as without git
    assert write_lock("first", SEEDS, PREDICTIONS, DESIGN, tmp_path)["commit"] == "unknown"


def test_changes_that_are_not_committed_are_recorded(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "source_version", lambda: ("c" * 40, True))
    found = write_lock("first", SEEDS, PREDICTIONS, DESIGN, tmp_path)
    assert (found["commit"], found["dirty"]) == ("c" * 40, True)


def test_a_run_of_one_of_the_seeds_prevents_a_lock(tmp_path):
    runs = [("needle-diff_v1-10-abc", tmp_path / "trained")]
    with pytest.raises(LockError, match="with which 1 runs exist already"):
        write_lock("first", SEEDS, PREDICTIONS, DESIGN, tmp_path, runs)
    assert read_lock(tmp_path) is None


def test_the_same_lock_keeps_its_time_and_another_one_raises(folder):
    before = (folder / LOCK).read_text()
    reordered = {7: [SAME, MORE]}
    assert write_lock("first", SEEDS, reordered, DESIGN, folder) == json.loads(before)
    assert (folder / LOCK).read_text() == before
    with pytest.raises(LockError, match=r"size was 0\.02, is 0\.01"):
        write_lock("first", SEEDS, {7: [replace(MORE, size=0.01), SAME]}, DESIGN, folder)
    with pytest.raises(LockError, match="is of the study 'first', not of 'second'"):
        write_lock("second", SEEDS, PREDICTIONS, DESIGN, folder)
    assert (folder / LOCK).read_text() == before


@pytest.mark.parametrize(
    ("now", "words"),
    [
        ({7: [replace(MORE, kind="no worse"), SAME]}, "kind was 'more', is 'no worse'"),
        ({7: [replace(MORE, because="noise"), SAME]}, "because was 'less noise', is 'noise'"),
        ({7: [replace(MORE, gates=(noise("x"),)), SAME]}, "gates was .*learned.* is .*noise"),
        ({7: [replace(MORE, primary=False), SAME]}, "primary was True, is False"),
        ({7: [MORE]}, "test 7, sparsity, accuracy: V1 minus standard, under stress: removed"),
        ({7: [MORE, SAME], 8: [SAME]}, "test 8, sparsity, .*: added"),
        ({7: [MORE, SAME, replace(SAME, kind="more")]}, "test 7, sparsity, .*: added"),
    ],
)
def test_a_changed_prediction_is_named(now, words, folder):
    with pytest.raises(LockError, match=words) as error:
        check_lock("first", SEEDS, now, DESIGN, folder)
    assert "needs seeds that nobody has looked at" in str(error.value)
    assert str(error.value).count("\n  test ") == 1  # and no other


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"recipe": {"lr": 2e-3}}, "in: recipe;"),
        ({"arms": {"top-k": {"sweep": {"k": (2, 8)}}}}, "in: arms;"),
        ({"tuning": {"steps": 9}, "recipe": {}}, "in: recipe, tuning;"),
        ({"more": 1}, "in: more;"),
    ],
)
def test_a_changed_design_is_named(changes, words, folder):
    with pytest.raises(LockError, match=f"the design has changed since the lock, {words}"):
        check_lock("first", SEEDS, PREDICTIONS, DESIGN | changes, folder)
    with pytest.raises(LockError, match="lock a new study"):
        write_lock("first", SEEDS, PREDICTIONS, DESIGN | changes, folder)


def test_a_study_needs_its_lock_and_its_seeds(folder, tmp_path):
    with pytest.raises(LockError, match=r"has no lock\.json; .* lock --study first --out"):
        check_lock("first", SEEDS, PREDICTIONS, DESIGN, tmp_path)
    with pytest.raises(LockError, match=r"has the seeds 10, 11, .*, got 10, 11; use the locked"):
        check_lock("first", [10, 11], PREDICTIONS, DESIGN, folder)


def test_a_run_older_than_the_lock_is_named(folder):
    locked = datetime.fromisoformat(read_lock(folder)["time"])
    runs = [("after", locked + timedelta(hours=1)), ("before", locked - timedelta(seconds=1))]
    with pytest.raises(LockError, match="but the run before began before it"):
        check_lock("first", SEEDS, PREDICTIONS, DESIGN, folder, runs)


@pytest.mark.parametrize(
    "what",
    [
        lambda kept: kept["predictions"]["7"][0].update(size=0.5),
        lambda kept: kept["design"]["recipe"].update(lr=0.5),
        lambda kept: kept.pop("design"),
    ],
)
def test_an_edited_lock_is_rejected(what, folder):
    kept = json.loads((folder / LOCK).read_text())
    what(kept)
    (folder / LOCK).write_text(json.dumps(kept))
    with pytest.raises(LockError, match="was damaged or edited"):
        check_lock("first", SEEDS, PREDICTIONS, DESIGN, folder)
