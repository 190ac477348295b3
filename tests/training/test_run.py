"""A run: what it writes, how it goes on after a kill, and what it refuses."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from antiphase.training import checkpoints, resume, train
from antiphase.training.trouble import TroubleError
from antiphase.training.watch import read_metrics
from tests.training.small import SMALL, assert_same_end, untimed


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    return train(SMALL, tmp_path_factory.mktemp("run") / "whole", quiet=True)


def test_a_run_folder_has_everything(finished):
    names = {p.name for p in finished.iterdir()}
    wanted = {"recipe.yaml", "metrics.jsonl", "checkpoints", "model", "environment.json"}
    assert names >= wanted | {"README.md", "curve.png"}
    net = AutoModelForCausalLM.from_pretrained(finished / "model")
    assert net.config.attention == "diff_v1"
    lines = read_metrics(finished)
    logged = [line for line in lines if "loss" in line]
    assert [line["step"] for line in logged] == [5, 10, 15, 20, 25, 30]
    assert all(
        {"grad_norm", "learning_rate", "lam_0", "tokens_per_second"} <= set(x) for x in logged
    )
    assert [x["step"] for x in lines if "held_out_accuracy" in x] == [10, 20, 30]
    assert json.loads((finished / "environment.json").read_text())["torch"] == torch.__version__
    assert sorted(p.name for p in (finished / "checkpoints").iterdir()) == [
        "checkpoint-20",
        "checkpoint-30",
    ]


@pytest.mark.parametrize("attention", ["diff_v2", "low_rank_noise"])
def test_training_lowers_the_loss(attention, tmp_path):
    folder = train(
        SMALL.changed(attention=attention, steps=60, lr=5e-3), tmp_path / "r", quiet=True
    )
    losses = [line["loss"] for line in read_metrics(folder) if "loss" in line]
    assert losses[-1] < losses[0] - 0.2


def test_the_same_recipe_gives_the_same_run(finished, tmp_path):
    assert_same_end(train(SMALL, tmp_path / "again", quiet=True), finished)


def test_accumulation_is_the_same_batch_in_parts(finished, tmp_path):
    parts = train(SMALL.changed(accumulate=4), tmp_path / "parts", quiet=True)
    for a, b in zip(untimed(parts), untimed(finished), strict=True):
        assert a["step"] == b["step"]
        assert a.get("loss", 0) == pytest.approx(b.get("loss", 0), rel=1e-4)


def test_a_run_is_not_overwritten_without_force(finished, tmp_path):
    with pytest.raises(ValueError, match="go on with --resume, or overwrite with --force"):
        train(SMALL, finished, quiet=True)
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    train(SMALL.changed(steps=10), copy, force=True, quiet=True)
    assert untimed(copy)[-1]["step"] == 10
    assert resume(finished, quiet=True) == finished  # nothing left to do


def unfinished(finished: Path, folder: Path) -> Path:
    """Return a run that was killed after its last checkpoint but one."""
    shutil.copytree(finished, folder)
    shutil.rmtree(folder / "model")
    shutil.rmtree(folder / "checkpoints" / "checkpoint-30")
    return folder


def test_resuming_ends_bit_by_bit_the_same(finished, tmp_path):
    folder = unfinished(finished, tmp_path / "r")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 29, "loss"')  # cut off by the kill
    assert_same_end(resume(folder, quiet=True), finished)


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda c: (c / "manifest.json").unlink(), "was not finished"),
        (lambda c: (c / "manifest.json").write_text("{"), "manifest cannot be read"),
        (lambda c: (c / "optimizer.pt").unlink(), "optimizer.pt is missing"),
        (lambda c: os.truncate(c / "model.safetensors", 100), "model.safetensors is damaged"),
    ],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_taken(
    finished, tmp_path, damage, named, capsys
):
    folder = tmp_path / "r"
    shutil.copytree(finished, folder)
    shutil.rmtree(folder / "model")
    damage(folder / "checkpoints" / "checkpoint-30")
    assert_same_end(resume(folder, quiet=True), finished)
    assert "checkpoint-30" in (err := capsys.readouterr().err)
    assert named in err


def test_without_a_whole_checkpoint_it_starts_again(finished, tmp_path):
    folder = unfinished(finished, tmp_path / "r")
    (folder / "checkpoints" / "checkpoint-20" / "manifest.json").unlink()
    assert_same_end(resume(folder, quiet=True), finished)


def test_what_is_no_run_cannot_be_resumed(tmp_path):
    with pytest.raises(ValueError, match=r"is no run \(no recipe.yaml in it\)"):
        resume(tmp_path)


def test_a_full_disk_loses_nothing(finished, tmp_path, monkeypatch):
    folder = unfinished(finished, tmp_path / "r")
    real = shutil.disk_usage
    tight = real(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: tight)
    with pytest.raises(checkpoints.NoSpaceError, match="MB are free; make room and go on with"):
        resume(folder, quiet=True)
    monkeypatch.setattr(shutil, "disk_usage", real)
    assert_same_end(resume(folder, quiet=True), finished)


def test_a_changed_vocabulary_is_refused(finished, tmp_path):
    folder = unfinished(finished, tmp_path / "r")
    recipe = (folder / "recipe.yaml").read_text()
    (folder / "recipe.yaml").write_text(recipe.replace("values: 4", "values: 5"))
    with pytest.raises(
        ValueError, match="was trained with a vocabulary of 42, the task now has 43"
    ):
        resume(folder, quiet=True)


@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_a_loss_that_is_not_finite(policy, tmp_path, monkeypatch):
    from antiphase.models.layers import SwiGLU

    steps, forward = [], SwiGLU.forward

    def broken(self, x):
        steps.append(self.training)
        bad = self.training and sum(steps) == 7
        return forward(self, x) * (float("nan") if bad else 1.0)

    monkeypatch.setattr(SwiGLU, "forward", broken)
    recipe = SMALL.changed(on_trouble=policy)
    if policy == "stop":
        with pytest.raises(TroubleError, match=r"step 7: the loss is nan.*on examples 48 to 55"):
            train(recipe, tmp_path / "r", quiet=True)
    else:
        folder = train(recipe, tmp_path / "r", quiet=True)
        assert any("the loss is nan" in line.get("why", "") for line in read_metrics(folder))
        net = AutoModelForCausalLM.from_pretrained(folder / "model")
        assert all(p.isfinite().all() for p in net.parameters())


def test_a_spike_of_the_gradient_is_named(tmp_path):
    recipe = SMALL.changed(spike=1.0001, clip=0.0)
    with pytest.raises(
        TroubleError, match=r"step \d+: the gradient's norm .* times its running mean"
    ):
        train(recipe, tmp_path / "r", quiet=True)


def test_snapshots_keep_the_maps_of_chosen_steps(tmp_path):
    folder = train(SMALL.changed(snapshots=[1, 20], steps=20), tmp_path / "r", quiet=True)
    assert sorted(p.name for p in (folder / "snapshots").iterdir()) == ["step1.npz", "step20.npz"]
    kept = np.load(folder / "snapshots" / "step20.npz")
    assert kept["layer0"].shape == (4, 2, 16, 16)


def kill_again_and_again(folder: Path, kills: int) -> int:
    """Start or resume a run, kill it at a random moment, and count until it ends by itself."""
    clock, done = random.Random(0), 0
    recipe = folder.parent / "recipe.yaml"
    while True:
        resumed = (folder / "recipe.yaml").exists()
        how = ["--resume", str(folder)] if resumed else [str(recipe), "--out", str(folder)]
        before = len(read_metrics(folder))
        process = subprocess.Popen(
            [sys.executable, "-m", "antiphase", "train", *how],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        if done == kills:
            assert process.wait(timeout=300) == 0
            return done
        while process.poll() is None and len(read_metrics(folder)) <= before:
            time.sleep(0.01)
        time.sleep(clock.random() * 0.7)
        assert process.poll() is None, "it ended before it could be killed"
        process.send_signal(signal.SIGKILL)
        process.wait()
        done += 1


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_again_and_again_it_ends_the_same(kills, tmp_path):
    recipe = SMALL.changed(steps=150 * (kills + 1), checkpoint_every=20, evaluate_every=100)
    recipe.save(tmp_path / "recipe.yaml")
    whole = train(recipe, tmp_path / "whole", quiet=True)
    assert kill_again_and_again(tmp_path / "killed", kills) == kills
    assert_same_end(tmp_path / "killed", whole)
