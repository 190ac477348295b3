"""A study that is killed at any moment repeats nothing, and ends with the same results."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.experiments import killed_study
from tests.experiments.killed_study import MOMENTS, finished

TUNING, TRAINING = 3 + 3 + 3, 2 * 2  # runs: three values of k are tried at the centre only


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("killed")
    folders = [root / name for name in ("whole", "killed", "log.json")]
    done = subprocess.run(
        [sys.executable, "-m", killed_study.__name__, *map(str, folders)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folders


def test_what_is_finished_is_not_repeated(folders):
    _, _, log = folders
    before: dict[str, int] = {}
    for moment, now in zip((*MOMENTS, "end"), json.loads(log.read_text()), strict=True):
        assert {path: now[path] for path in before} == before, moment
        before = now
    assert len(before) >= TUNING + TRAINING + 2


def test_it_was_killed_while_tuning_training_and_measuring(folders):
    """What was finished at each moment: so many trained models, so many measured tests."""
    _, _, log = folders
    counts = {}
    for moment, now in zip((*MOMENTS, "end"), json.loads(log.read_text()), strict=True):
        counts[moment] = tuple(
            sum(path.startswith(kind) for path in now) for kind in ("trained/", "measured/test-")
        )
    assert counts[1] == (0, 0)
    assert 0 < counts[13][0] < counts[19][0] < TUNING
    assert counts["train_all", 1] == (TUNING, 0)
    assert TUNING <= counts[9][0] < counts[24][0] < TUNING + TRAINING
    everything = TUNING + TRAINING
    assert counts["_run", 1] == (everything, 0)
    assert counts["_run", 2] == (everything, 1)
    assert counts["training_tables", 1] == counts["end"] == (everything, 2)


def test_the_results_are_those_of_an_uninterrupted_study(folders):
    whole, killed, _ = folders
    assert (killed / "results.json").read_text() == (whole / "results.json").read_text()
    assert set(finished(killed)) == set(finished(whole))
    for path in finished(whole):
        assert (killed / path).read_bytes() == (whole / path).read_bytes()
