"""A run: what it writes, how it resumes after a kill, and what it rejects."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from antiphase.training import resume, train
from antiphase.training.callbacks import cpu_seconds, read_metrics
from antiphase.training.checkpoints import write_manifest
from tests.training.small import SMALL, assert_same_end, unfinished, untimed, weights


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    return train(SMALL, tmp_path_factory.mktemp("run") / "complete", quiet=True)


def test_a_run_folder_has_everything(finished):
    names = {p.name for p in finished.iterdir()}
    wanted = {"recipe.yaml", "metrics.jsonl", "checkpoints", "model", "environment.json"}
    assert names >= wanted | {"README.md", "curve.png"}
    net = AutoModelForCausalLM.from_pretrained(finished / "model")
    assert net.config.attention == "diff_v1"
    assert net.config.use_cache
    lines = read_metrics(finished)
    logged = [line for line in lines if "loss" in line]
    assert [line["step"] for line in logged] == [5, 10, 15, 20, 25, 30]
    assert all(
        {"grad_norm", "learning_rate", "lam_0", "tokens_per_second"} <= set(x) for x in logged
    )
    assert [x["step"] for x in lines if "held_out_accuracy" in x] == [10, 20, 30]
    used = [x["cpu_seconds"] for x in lines if "held_out_loss" in x]
    assert 0 < used[0] < used[1] < used[2] == cpu_seconds(finished)
    assert json.loads((finished / "environment.json").read_text())["torch"] == torch.__version__
    assert sorted(p.name for p in (finished / "checkpoints").iterdir()) == [
        "checkpoint-20",
        "checkpoint-30",
    ]


@pytest.mark.parametrize("quiet", [True, False])
def test_a_quiet_run_prints_nothing_and_the_bar_ends_once(quiet, tmp_path, capsys):
    train(SMALL.changed(steps=10), tmp_path / "r", quiet=quiet)
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert len(lines) == (0 if quiet else 1), captured.err
    assert quiet or "needle, diff_v1" in lines[0]


@pytest.mark.parametrize("attention", ["diff_v2", "low_rank_noise"])
def test_training_lowers_the_loss(attention, tmp_path):
    folder = train(
        SMALL.changed(attention=attention, steps=60, lr=5e-3), tmp_path / "r", quiet=True
    )
    losses = [line["loss"] for line in read_metrics(folder) if "loss" in line]
    assert losses[-1] < losses[0] - 0.2


def test_the_same_recipe_gives_the_same_run(finished, tmp_path):
    assert_same_end(train(SMALL, tmp_path / "again", quiet=True), finished)


def test_accumulation_is_the_same_batch_in_micro_batches(finished, tmp_path):
    parts = train(SMALL.changed(accumulate=4), tmp_path / "parts", quiet=True)
    for found, expected in zip(untimed(parts), untimed(finished), strict=True):
        assert found["step"] == expected["step"]
        assert found.get("loss", 0) == pytest.approx(expected.get("loss", 0), rel=1e-4)


def test_a_run_is_not_overwritten_without_force(finished, tmp_path):
    with pytest.raises(ValueError, match=r"resume with --resume.*, or overwrite with --force"):
        train(SMALL, finished, quiet=True)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("gold")
    with pytest.raises(ValueError, match="--force overwrites runs only"):
        train(SMALL, tmp_path / "thesis", force=True, quiet=True)
    before = sorted(p.name for p in finished.iterdir())
    with pytest.raises(ValueError, match="has no option 'hay'"):
        train(SMALL.changed(task_options={"hay": 1}), finished, force=True, quiet=True)
    assert sorted(p.name for p in finished.iterdir()) == before
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    train(SMALL.changed(steps=10), copy, force=True, quiet=True)
    assert untimed(copy)[-1]["step"] == 10
    assert resume(finished, quiet=True) == finished  # nothing left to do


def test_resuming_ends_bit_by_bit_the_same(finished, tmp_path):
    folder = unfinished(finished, tmp_path / "r")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 29, "loss"')  # cut off by the kill
    used = next(
        x["cpu_seconds"] for x in read_metrics(folder) if "cpu_seconds" in x and x["step"] == 20
    )
    assert_same_end(resume(folder, quiet=True), finished)
    assert cpu_seconds(folder) > used


def test_dropout_is_the_same_after_a_resume_and_in_recomputation(tmp_path):
    recipe = SMALL.changed(model={**SMALL.model, "attention_dropout": 0.3})
    whole = train(recipe, tmp_path / "whole", quiet=True)
    assert_same_end(resume(unfinished(whole, tmp_path / "resumed"), quiet=True), whole)
    recomputed = train(recipe.changed(checkpointing=True), tmp_path / "recomputed", quiet=True)
    assert_same_end(recomputed, whole)
    without = train(SMALL, tmp_path / "without", quiet=True)
    assert untimed(without)[0]["loss"] != untimed(whole)[0]["loss"]


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


def test_without_a_complete_checkpoint_it_starts_again(finished, tmp_path):
    folder = unfinished(finished, tmp_path / "r")
    (folder / "checkpoints" / "checkpoint-20" / "manifest.json").unlink()
    assert_same_end(resume(folder, quiet=True), finished)


def test_what_is_no_run_cannot_be_resumed(tmp_path):
    with pytest.raises(ValueError, match=r"is no run \(no recipe.yaml in it\)"):
        resume(tmp_path)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hiden_size": 64}, "model: has no field 'hiden_size'; .*; did you mean 'hidden_size'"),
        ({"attention": "standard"}, "attention is a field of the recipe itself"),
        ({"num_hidden_layers": 0}, "num_hidden_layers: got 0, expected at least 1"),
        ({"vocab_size": "abc"}, "model.vocab_size: got 'abc', expected a whole number"),
    ],
)
def test_bad_fields_of_the_model_are_named_before_anything_is_written(fields, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        train(SMALL.changed(model=fields), tmp_path / "r", quiet=True)
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("now", "message"),
    [
        ("hidden_size: 64", "trained with hidden_size = 32, the recipe now says 64"),
        ("hidden_size: 32\n  branch_scale: 2.0", "branch_scale = 1.0, the recipe now says 2.0"),
    ],
)
def test_another_model_is_rejected_on_resume(finished, tmp_path, now, message):
    folder = unfinished(finished, tmp_path / "r")
    recipe = (folder / "recipe.yaml").read_text()
    (folder / "recipe.yaml").write_text(recipe.replace("hidden_size: 32", now))
    with pytest.raises(ValueError, match=message):
        resume(folder, quiet=True)


def test_a_run_of_before_the_choice_of_initialisation_can_be_resumed(tmp_path):
    model = {**SMALL.model, "initialisation": "published"}
    complete = train(SMALL.changed(model=model), tmp_path / "complete", quiet=True)
    folder = unfinished(complete, tmp_path / "r")
    recipe = (folder / "recipe.yaml").read_text()
    assert "initialisation: published" in recipe
    (folder / "recipe.yaml").write_text(recipe.replace("  initialisation: published\n", ""))
    for path in folder.glob("checkpoints/*/config.json"):
        fields = json.loads(path.read_text())
        del fields["initialisation"], fields["branch_scale"]
        path.write_text(json.dumps(fields))
        write_manifest(path.parent)
    assert_same_end(resume(folder, quiet=True), complete)
    for place in ("model", "checkpoints/checkpoint-30"):
        saved = json.loads((folder / place / "config.json").read_text())
        assert saved["initialisation"] == "published"


def test_a_missing_card_is_written_again_and_damaged_metrics_are_ignored(finished, tmp_path):
    folder = tmp_path / "r"
    shutil.copytree(finished, folder)
    (folder / "README.md").unlink()
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('5\n{"loss": 1}\n')
    resume(folder, quiet=True)
    assert "accuracy" in (folder / "README.md").read_text()


def test_a_changed_vocabulary_is_rejected(finished, tmp_path):
    folder = unfinished(finished, tmp_path / "r")
    recipe = (folder / "recipe.yaml").read_text()
    (folder / "recipe.yaml").write_text(recipe.replace("values: 4", "values: 5"))
    with pytest.raises(
        ValueError, match="was trained with a vocabulary of 42, the task now has 43"
    ):
        resume(folder, quiet=True)


def test_snapshots_keep_the_maps_of_chosen_steps(tmp_path):
    folder = train(SMALL.changed(snapshots=[1, 20], steps=20), tmp_path / "r", quiet=True)
    assert sorted(p.name for p in (folder / "snapshots").iterdir()) == ["step1.npz", "step20.npz"]
    kept = np.load(folder / "snapshots" / "step20.npz")
    assert kept["layer0"].shape == (4, 2, 16, 16)


def test_milestones_are_models_of_their_steps(finished, tmp_path):
    folder = train(SMALL.changed(milestones=[0, 10, 30]), tmp_path / "r", quiet=True)
    assert sorted(p.name for p in (folder / "milestones").iterdir()) == [
        "step0",
        "step10",
        "step30",
    ]
    start, end = (
        load_file(folder / "milestones" / n / "model.safetensors") for n in ("step0", "step30")
    )
    assert not torch.equal(start["model.norm.weight"], end["model.norm.weight"])
    assert all(torch.equal(end[name], value) for name, value in weights(finished).items())


def test_reporters_get_what_the_metrics_get(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = train(SMALL.changed(report=["tensorboard"], steps=10), tmp_path / "r", quiet=True)
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    tags = set(events.Tags()["scalars"])
    assert {"train/loss", "train/lam_0", "train/held_out_accuracy"} <= tags
    loss = [line["loss"] for line in read_metrics(folder) if "loss" in line]
    assert [e.value for e in events.Scalars("train/loss")] == pytest.approx(loss)


def test_an_unknown_reporter_is_named(tmp_path):
    with pytest.raises(ValueError, match="report: got 'chalkboard', allowed are"):
        train(SMALL.changed(report=["chalkboard"]), tmp_path / "r", quiet=True)
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("changes", "tolerance"),
    [({"checkpointing": True}, 1e-6), ({"precision": "bf16"}, 0.05)],
    ids=["checkpointing", "bf16"],
)
def test_ways_to_save_memory_give_nearly_the_same_run(changes, tolerance, finished, tmp_path):
    folder = train(SMALL.changed(**changes), tmp_path / "r", quiet=True)
    losses, wanted = (
        [line["loss"] for line in read_metrics(f) if "loss" in line] for f in (folder, finished)
    )
    assert losses == pytest.approx(wanted, rel=tolerance)
    if "precision" in changes:
        assert losses != wanted, "bf16 was not used"


@pytest.mark.slow
def test_a_compiled_run_is_nearly_the_same(finished, tmp_path):
    folder = train(SMALL.changed(compile=True), tmp_path / "r", quiet=True)
    losses, wanted = (
        [line["loss"] for line in read_metrics(f) if "loss" in line] for f in (folder, finished)
    )
    assert losses == pytest.approx(wanted, rel=1e-4)
    AutoModelForCausalLM.from_pretrained(folder / "model")


def test_a_language_run_ends_with_its_tokenizer_and_rejects_another_text(tmp_path, monkeypatch):
    monkeypatch.setenv("ANTIPHASE_CACHE", str(tmp_path / "cache"))
    text = tmp_path / "text"
    text.mkdir()
    for i in range(80):
        (text / f"{i}.txt").write_text(f"Chapter {i}. " + "All that is told is told twice. " * 9)
    recipe = SMALL.changed(
        task="language", task_options={"text": str(text), "length": 32}, evaluate_examples=4
    )
    complete = train(recipe, tmp_path / "complete", quiet=True)
    tokenizer = AutoTokenizer.from_pretrained(complete / "model")
    assert tokenizer.decode(tokenizer("told twice")["input_ids"]) == "told twice"
    assert (
        len(tokenizer) == AutoModelForCausalLM.from_pretrained(complete / "model").config.vocab_size
    )
    scored = [line for line in read_metrics(complete) if "held_out_loss" in line]
    assert scored[-1]["held_out_recall_loss"] < scored[-1]["held_out_other_loss"]
    assert_same_end(resume(unfinished(complete, tmp_path / "same"), quiet=True), complete)
    other = unfinished(complete, tmp_path / "other")
    (text / "new.txt").write_text("More.")
    with pytest.raises(ValueError, match="has changed since this run began"):
        resume(other, quiet=True)
