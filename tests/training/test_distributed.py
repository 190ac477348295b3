"""More than one process: the same curve as one, and models sharded over CPUs."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from accelerate.state import AcceleratorState

from antiphase.tasks.text.packing import pack
from antiphase.training import train
from antiphase.training.callbacks import read_metrics
from tests.training.small import SMALL, weights

SHARDED = Path(__file__).with_name("sharded.py")
SLOW_THREAD = Path(__file__).with_name("slow_gloo_thread.py")
ROOT = Path(__file__).parents[2]
FILES = ("train-2", "train-1", "resume-1")  # what sharded.py writes
MECHANISMS = ["diff_v1", pytest.param("diff_v2", marks=pytest.mark.slow)]


def launch(*arguments: str, processes: int = 2) -> str:
    """Run a module or script in several processes; return what they printed."""
    start = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
    done = subprocess.run(
        [*start, *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout + done.stderr


def losses(folder: Path) -> list[float]:
    return [line["loss"] for line in read_metrics(folder) if "loss" in line]


@pytest.mark.parametrize("attention", MECHANISMS)
def test_two_processes_give_the_curve_of_one(attention, tmp_path):
    recipe = SMALL.changed(attention=attention, steps=20)
    (tmp_path / "recipe.yaml").write_text(recipe.as_yaml())
    one = train(recipe, tmp_path / "one", quiet=True)
    two = tmp_path / "two"
    launch("-m", "antiphase", "train", str(tmp_path / "recipe.yaml"), "--out", str(two))
    assert losses(one) == pytest.approx(losses(two), rel=1e-4)
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


@pytest.mark.timeout(120)
def test_a_run_ends_while_a_thread_of_gloo_needs_the_gil(tmp_path):
    """It held the group's mutex, for which the main thread waited with the GIL: a deadlock."""
    launch(str(SLOW_THREAD), str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


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
    launch(str(SHARDED), attention, str(tmp_path), "train")
    for mode in ("train", "resume"):
        command = [sys.executable, str(SHARDED), attention, str(tmp_path), mode]
        subprocess.run(command, capture_output=True, text=True, check=True)
    two, one, loaded = (torch.load(tmp_path / f"{name}.pt") for name in FILES)
    assert two["losses"] == pytest.approx(one["losses"], rel=1e-5)
    assert two["losses"][-1] < two["losses"][0]
    assert loaded["losses"] == pytest.approx(two["losses"][4:], rel=1e-5)
    assert two["largest"] == one["largest"]
    assert two["lambdas"] == pytest.approx(one["lambdas"], rel=1e-4)
    assert two["weights"].keys() == one["weights"].keys()
    for name, weight in two["weights"].items():
        torch.testing.assert_close(weight, one["weights"][name], rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["diff_v1", "diff_v2"])
def test_shards_of_two_load_in_four(attention, tmp_path):
    launch(str(SHARDED), attention, str(tmp_path), "train")
    launch(str(SHARDED), attention, str(tmp_path), "resume", processes=4)
    two, four = torch.load(tmp_path / "train-2.pt"), torch.load(tmp_path / "resume-4.pt")
    assert four["losses"] == pytest.approx(two["losses"][4:], rel=1e-5)


@pytest.mark.slow
def test_a_run_of_two_processes_resumes_in_four(tmp_path):
    """Text that is packed once, and the curve of one process."""
    for i in range(120):
        text = f"Text {i}.\n" + f"Line {i} and some words.\n" * (9 + i % 5)
        (tmp_path / f"{i:03}.txt").write_text(text)
    recipe = SMALL.changed(
        task="language", task_options={"text": str(tmp_path / "*.txt"), "length": 32}, steps=20
    )
    (tmp_path / "recipe.yaml").write_text(recipe.as_yaml())
    arguments = ["-m", "antiphase", "train", str(tmp_path / "recipe.yaml"), "--out"]
    launch(*arguments, str(tmp_path / "two"), processes=2)
    resumed = tmp_path / "resumed"
    shutil.copytree(tmp_path / "two", resumed)
    shutil.rmtree(resumed / "model")
    shutil.rmtree(resumed / "checkpoints" / "checkpoint-20")
    launch("-m", "antiphase", "train", "--resume", str(resumed), processes=4)
    one = train(recipe, tmp_path / "one", quiet=True)
    assert losses(resumed) == pytest.approx(losses(one), rel=1e-4)
    assert losses(tmp_path / "two") == pytest.approx(losses(one), rel=1e-4)
    assert weights(resumed).keys() == weights(one).keys()
    for name, weight in weights(resumed).items():
        torch.testing.assert_close(weight, weights(one)[name], rtol=1e-3, atol=1e-4)
    packed = pack([str(tmp_path / "*.txt")], "bytes").folder
    assert len((packed / "log.jsonl").read_text().splitlines()) == 1
    shutil.rmtree(packed)  # the cache is the user's: another one would have to build kernels anew


@pytest.mark.slow
def test_four_processes_pack_once_and_three_of_them_only_map(tmp_path, monkeypatch):
    monkeypatch.setenv("ANTIPHASE_CACHE", str(tmp_path / "cache"))
    text = tmp_path / "text.txt"
    with text.open("w") as file:
        for i in range(250_000):
            file.write(f"Line {i}, of a text that is much larger than what mapping it needs.\n")
    script = ["-m", "tests.training.start_up"]
    said = launch(*script, str(text), str(tmp_path / "four"), processes=4)
    assert "waiting until the first process has packed the text" in said
    launch(*script, str(text), str(tmp_path / "mapped"), processes=1)
    four = [json.loads((tmp_path / f"four-{rank}.json").read_text()) for rank in range(4)]
    mapped = json.loads((tmp_path / "mapped-0.json").read_text())
    (log,) = (tmp_path / "cache" / "text").glob("*/log.jsonl")
    shards = [json.loads(line)["shard"] for line in log.read_text().splitlines()]
    assert sorted(shards) == list(range(len(shards)))
    assert len(shards) == 2
    assert {rank["tokens"] for rank in four} == {mapped["tokens"]}
    for rank in four[1:]:
        assert rank["peak"] < 1.1 * mapped["peak"]


@pytest.mark.slow
def test_the_plan_has_the_memory_that_two_processes_need(tmp_path):
    launch("-m", "tests.training.fsdp_memory", str(tmp_path / "found.json"))
    for rows in json.loads((tmp_path / "found.json").read_text()).values():
        for name in ("weights", "gradients", "optimiser"):
            assert rows[name]["planned"] == pytest.approx(rows[name]["measured"], rel=0.05)
        planned, measured = rows["activations"]["planned"], rows["activations"]["measured"]
        assert planned == pytest.approx(measured, rel=0.15)
