"""More than one process: the same curve as one, and models sharded over CPUs."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from accelerate.state import AcceleratorState

from antiphase.training import train
from antiphase.training.callbacks import read_metrics
from tests.training.small import SMALL

SHARDED = Path(__file__).with_name("sharded.py")
MECHANISMS = ["diff_v1", pytest.param("diff_v2", marks=pytest.mark.slow)]


def launch(*arguments: str) -> subprocess.CompletedProcess:
    """Run a module or script in two processes."""
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("attention", MECHANISMS)
def test_two_processes_give_the_curve_of_one(attention, tmp_path):
    recipe = SMALL.changed(attention=attention, steps=20)
    (tmp_path / "recipe.yaml").write_text(recipe.as_yaml())
    one = train(recipe, tmp_path / "one", quiet=True)
    two = tmp_path / "two"
    done = launch("-m", "antiphase", "train", str(tmp_path / "recipe.yaml"), "--out", str(two))
    assert done.returncode == 0, done.stderr[-2000:]
    curves = [[line["loss"] for line in read_metrics(f) if "loss" in line] for f in (one, two)]
    assert curves[0] == pytest.approx(curves[1], rel=1e-4)
    scores = [read_metrics(f)[-2:] for f in (one, two)]
    assert [s["step"] for s in scores[0]] == [s["step"] for s in scores[1]]


@pytest.mark.parametrize("given", [False, True])
def test_a_run_ends_the_process_group_that_it_started(given, tmp_path, monkeypatch):
    """Else gloo's threads live on while Python finalises, which can abort the process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    about = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": port}
    for name, value in (about | {"MASTER_ADDR": "127.0.0.1"}).items():
        monkeypatch.setenv(name, value)
    started = []
    init = dist.init_process_group
    monkeypatch.setattr(dist, "init_process_group", lambda *a, **k: started.append(init(*a, **k)))
    if given:
        dist.init_process_group("gloo")
    try:
        before = gloo_threads()
        train(SMALL.changed(steps=10), tmp_path / "r", quiet=True)
        assert len(started) == 1
        assert given or gloo_threads() == before
        assert dist.is_initialized() == given
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        AcceleratorState._reset_state(reset_partial_state=True)


def gloo_threads() -> int:
    names = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
    return sum("gloo" in name for name in names)


def test_fsdp_on_cpus_is_rejected(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    with pytest.raises(ValueError, match="FSDP: the Trainer shards over accelerators only"):
        train(SMALL, tmp_path / "r", quiet=True)


@pytest.mark.parametrize("attention", MECHANISMS)
def test_a_model_sharded_by_two_trains_and_loads_in_one(attention, tmp_path):
    done = launch(str(SHARDED), attention, str(tmp_path))
    assert done.returncode == 0, done.stderr[-2000:]
    alone = subprocess.run(
        [sys.executable, str(SHARDED), attention, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert alone.returncode == 0, alone.stderr[-2000:]
    sharded, complete = torch.load(tmp_path / "two.pt"), torch.load(tmp_path / "one.pt")
    assert sharded["losses"] == pytest.approx(complete["losses"], rel=1e-5)
    assert sharded["losses"][-1] < sharded["losses"][0]
    assert complete["loaded"] == pytest.approx(sharded["last"], rel=1e-5)
