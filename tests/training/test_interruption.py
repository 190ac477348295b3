"""Nothing is lost by kills, Ctrl-C or full disks."""

import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from antiphase.training import Recipe, checkpoints, resume, train
from antiphase.training.callbacks import read_metrics
from tests.training.small import SMALL, assert_same_end, unfinished


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    return train(SMALL, tmp_path_factory.mktemp("run") / "complete", quiet=True)


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "antiphase", "train", *map(str, arguments)]


def start(recipe: Recipe, folder: Path, **options) -> subprocess.Popen:
    """Start a run, or resume it."""
    written = folder.parent / f"{folder.name}.yaml"
    written.write_text(recipe.as_yaml())
    resumed = (folder / "recipe.yaml").exists()
    how = ["--resume", folder] if resumed else [written, "--out", folder]
    return subprocess.Popen(
        command(*how), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, **options
    )


def wait_for_more(process: subprocess.Popen, folder: Path, lines: int) -> None:
    while process.poll() is None and len(read_metrics(folder)) <= lines:
        time.sleep(0.01)


def kill_repeatedly(recipe: Recipe, folder: Path, kills: int) -> int:
    """Kill a run at random moments, and count; then let it end."""
    clock, done = random.Random(0), 0
    while True:
        before = len(read_metrics(folder))
        process = start(recipe, folder)
        if done == kills:
            process.communicate(timeout=300)
            assert process.returncode == 0
            return done
        wait_for_more(process, folder, before)
        time.sleep(clock.random() * 0.7)
        assert process.poll() is None, "it ended before it could be killed"
        process.send_signal(signal.SIGKILL)
        process.communicate()
        done += 1


@pytest.mark.parametrize("kills", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_repeatedly_it_ends_the_same(kills, tmp_path):
    recipe = SMALL.changed(steps=150 * (kills + 1), checkpoint_every=20, evaluate_every=100)
    complete = train(recipe, tmp_path / "complete", quiet=True)
    assert kill_repeatedly(recipe, tmp_path / "killed", kills) == kills
    assert_same_end(tmp_path / "killed", complete)


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_interrupted_it_saves_and_resumes_later(number, tmp_path):
    recipe = SMALL.changed(steps=300, checkpoint_every=300)
    process = start(recipe, tmp_path / "r")
    wait_for_more(process, tmp_path / "r", 3)
    process.send_signal(number)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 130, said
    last, faults = checkpoints.latest_complete(tmp_path / "r" / "checkpoints")
    assert last is not None, said
    assert not faults
    step = last.name.removeprefix("checkpoint-")
    assert f"stopped at step {step} of 300; resume with antiphase train --resume" in said
    assert int(step) % recipe.log_every == 0
    complete = train(recipe, tmp_path / "complete", quiet=True)
    assert_same_end(resume(tmp_path / "r", quiet=True), complete)


def test_a_disk_without_space_for_a_checkpoint_loses_nothing(finished, tmp_path, monkeypatch):
    folder = unfinished(finished, tmp_path / "r")
    real = shutil.disk_usage
    tight = real(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: tight)
    with pytest.raises(
        checkpoints.CheckpointError, match="MB are free; free disk space and resume"
    ):
        resume(folder, quiet=True)
    monkeypatch.setattr(shutil, "disk_usage", real)
    assert_same_end(resume(folder, quiet=True), finished)


def test_a_checkpoint_that_cannot_be_written_to_its_end_loses_nothing(finished, tmp_path):
    """A quota on file sizes fails the write itself, after the free space was found sufficient."""
    folder = unfinished(finished, tmp_path / "r")
    most = max(p.stat().st_size for p in (folder / "checkpoints").rglob("*") if p.is_file()) // 2
    process = start(
        SMALL, folder, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    )
    said = process.communicate(timeout=120)[1]
    assert process.returncode == 2, said
    assert "Traceback" not in said
    assert "the checkpoint of step 30 could not be written" in said
    assert_same_end(resume(folder, quiet=True), finished)


@pytest.mark.slow
def test_a_full_file_system_loses_nothing(finished, tmp_path):
    """A real one of a few megabytes, in a mount namespace of its own, then with more space."""
    disk, script = tmp_path / "disk", tmp_path / "script.sh"
    disk.mkdir()
    unfinished(finished, tmp_path / "r")
    size = sum(p.stat().st_size for p in (tmp_path / "r").rglob("*") if p.is_file()) >> 10
    # the second mount adds space to the same file system, as its owner would
    script.write_text(
        f"""set -e
mount -t tmpfs -o size={size + 200}k tmpfs {disk} || exit 77
cp -r {tmp_path}/r {disk}/r
status=0; {" ".join(command("--resume", disk / "r"))} || status=$?
echo "first: $status" >&2
mount -o remount,size={size + 9000}k {disk}
{" ".join(command("--resume", disk / "r"))}
cp -r {disk}/r {tmp_path}/end
"""
    )
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-rm", "true"], check=False).returncode:
        return  # no mounts for this user; the two tests above stand for it
    done = subprocess.run(
        [unshare, "-rm", "sh", str(script)], capture_output=True, text=True, check=False
    )
    if done.returncode == 77:
        return
    assert done.returncode == 0, done.stderr
    assert "first: 2" in done.stderr
    assert "free disk space and resume the run" in done.stderr
    assert_same_end(tmp_path / "end", finished)
