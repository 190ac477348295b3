"""Sweeps: from a grid to recipes, to runs, to a comparison."""

import io
import json
import sys

import pytest
from rich.console import Console

from antiphase.analysis.compare_runs import run_folders
from antiphase.cli import train as train_command
from antiphase.experiments.arms import TrainingRun
from antiphase.experiments.sweep import grid, load_sweep, run_sweep
from antiphase.training import Recipe
from tests.cli.runner import invoke
from tests.experiments.small import InProcess
from tests.training.small import SMALL

TINY = SMALL.changed(steps=10, checkpoint_every=10, evaluate_every=10)


def test_a_grid_combines_values_and_seeds():
    recipes = grid(
        Recipe(),
        {"lr": [1e-3, "2e-3"], "task_options.noise": [0.5, 1.0], "steps": 7, "seeds": [0, 1]},
    )
    assert len(recipes) == 2 * 2 * 2
    assert [r.seed for r in recipes] == [0, 1] * 4
    assert {(r.lr, r.task_options["noise"]) for r in recipes} == {
        (lr, noise) for lr in (1e-3, 2e-3) for noise in (0.5, 1.0)
    }
    assert {r.steps for r in recipes} == {7}
    assert {r.threads for r in recipes} == {1}
    assert {r.threads for r in grid(Recipe(), {"threads": 2})} == {2}
    assert [r.milestones for r in grid(Recipe(), {"milestones": [[0, 5], []]})] == [[0, 5], []]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"lrr": [1e-3]}, "has no field 'lrr'.*did you mean 'lr'"),
        ({"lr": []}, "lr has no values"),
        ({"lr": [-1.0]}, "lr: got -1.0, expected a number above 0"),
        ({"seeds": 3}, "seeds: got 3, expected a list"),
        ({"seeds": [0], "seed": 1}, "both seed and seeds"),
    ],
)
def test_a_grid_says_what_is_wrong(values, message):
    with pytest.raises(ValueError, match=message):
        grid(Recipe(), values)


def test_a_file_holds_a_grid_or_a_list_of_grids(tmp_path):
    path = tmp_path / "grid.yaml"
    path.write_text("attention: [standard, diff_v1]\nlr: 1.0e-3\nseeds: [0, 1]\n")
    assert len(load_sweep(path, Recipe())) == 4
    path.write_text("- {attention: standard, lr: 1.0e-3}\n- {attention: diff_v1, lr: 2.0e-3}\n")
    found = [(r.attention, r.lr) for r in load_sweep(path, Recipe())]
    assert found == [("standard", 1e-3), ("diff_v1", 2e-3)]
    for text in ("", "3", "[]", "[1]", "lr: [", "lr: []"):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"--sweep: .*grid\.yaml"):
            load_sweep(path, Recipe())


def test_a_run_is_named_by_task_and_method():
    assert TrainingRun(Recipe(task="language")).key.startswith("language-diff_v1-0-")
    tuned = Recipe(task="language", start="smollm2", method="lora", size="nano")
    assert TrainingRun(tuned).key.startswith("language-lora-0-")


def test_a_sweep_is_trained_once_and_compared(tmp_path, monkeypatch):
    path, recipe, out = tmp_path / "grid.yaml", tmp_path / "tiny.yaml", tmp_path / "sweep"
    path.write_text("attention: [standard, diff_v1]\nseeds: [0, 1]\n")
    recipe.write_text(TINY.as_yaml())
    monkeypatch.setattr(train_command, "open_engine", lambda *given: (InProcess(), None))
    command = ("train", str(recipe), "--sweep", str(path), "--out", str(out), "--json")
    done = invoke(*command)
    assert done.exit_code == 0, done.output
    groups = json.loads(done.stdout)["groups"]
    assert [(group["title"], group["seeds"]) for group in groups] == [
        ("standard", [0, 1]),
        ("diff_v1", [0, 1]),
    ]
    weights = sorted(out.glob("trained/*/model/model.safetensors"))
    stamps = [file.stat().st_mtime_ns for file in weights]
    assert len(stamps) == 4
    assert invoke(*command).exit_code == 0
    assert [file.stat().st_mtime_ns for file in weights] == stamps
    compared = invoke("compare", str(out), "--json")
    assert compared.exit_code == 0, compared.output
    found = {(group["title"], *sorted(group["seeds"])) for group in json.loads(compared.stdout)}
    assert found == {("standard", 0, 1), ("diff_v1", 0, 1)}
    single = run_folders([out])[0]
    assert run_folders([single]) == [single]


def test_a_sweep_names_what_failed_and_keeps_the_rest(tmp_path):
    recipes = [TINY, TINY.changed(attention="top_k", attention_options={"k": 0})]
    sweep = run_sweep(recipes, tmp_path, Console(file=io.StringIO()), InProcess())
    assert [folder.name for folder in sweep.finished] == [TrainingRun(TINY).key]
    (title, error), *_ = sweep.errors.items()
    assert "top_k(k=0)" in title
    assert "expected at least 1" in error


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--engine", "rai"], "--engine: got 'rai', allowed are local, ray"),
        (["--address", "auto"], "--address: is that of a Ray cluster, but --engine is local"),
        (["--results-url", "memory://x"], "are for many runs; give --sweep, too"),
        (["--sweep", "grid.yaml", "--force"], "--force: would overwrite the runs of a sweep"),
        (["--sweep", "nowhere.yaml"], "--sweep: nowhere.yaml cannot be read"),
    ],
)
def test_options_that_do_not_go_together(options, message):
    done = invoke("train", "needle-nano", *options)
    assert done.exit_code == 2
    assert message in done.stderr


def test_ray_that_is_not_installed(monkeypatch):
    from antiphase.experiments.ray_engine import RayEngine

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"needs Ray; pip install 'antiphase\[cluster\]'"):
        RayEngine()
