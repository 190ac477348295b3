"""A run from a pretrained model: the same folder, resume and metrics as any other."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from antiphase.pretrained.methods import METHODS
from antiphase.training import create_run, resume, train
from antiphase.training.callbacks import read_metrics
from antiphase.training.locks import exclusive_lock
from antiphase.training.run import LOCK
from tests.pretrained.small import made, tuning_recipe, write_base
from tests.training.small import SMALL, assert_same_end, unfinished


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_base(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def recipe(base):
    return tuning_recipe(base).changed(
        steps=30, log_every=5, checkpoint_every=10, evaluate_every=10
    )


@pytest.fixture(scope="module")
def finished(recipe, tmp_path_factory):
    return train(recipe, tmp_path_factory.mktemp("run") / "complete", quiet=True)


def test_it_has_the_folder_of_any_run(finished):
    names = {p.name for p in finished.iterdir()}
    assert names >= {"recipe.yaml", "metrics.jsonl", "checkpoints", "model", "environment.json"}
    assert names >= {"README.md", "curve.png", "adapter", "start.json", "text.json"}
    logged = [line for line in read_metrics(finished) if "loss" in line]
    assert [line["step"] for line in logged] == [5, 10, 15, 20, 25, 30]
    assert all({"grad_norm", "learning_rate", "lam_1"} <= set(line) for line in logged)
    assert [x["step"] for x in read_metrics(finished) if "held_out_loss" in x] == [10, 20, 30]
    assert logged[-1]["loss"] < logged[0]["loss"]
    plain = AutoModelForCausalLM.from_pretrained(finished / "model")
    assert type(plain).__name__ == "LlamaForCausalLM"
    assert plain.config.use_cache
    assert len(AutoTokenizer.from_pretrained(finished / "model")) == 257
    assert json.loads((finished / "adapter" / "adapter_config.json").read_text())["step"] == 30
    assert "model, dex, seed 0" in (finished / "README.md").read_text()


def test_checkpoints_hold_only_what_is_trained(finished):
    checkpoint = finished / "checkpoints" / "checkpoint-30"
    assert not (checkpoint / "model.safetensors").exists()
    parts = {name.split("self_attn.")[-1] for name in load_file(checkpoint / "trained.safetensors")}
    projections = {"k_proj.weight", "v_proj.weight", "o_proj.base_layer.weight"}
    assert parts == projections | {"o_proj.W_D", "o_proj.lam.learn"}


def test_resuming_ends_bit_by_bit_the_same(finished, tmp_path):
    folder = unfinished(finished, tmp_path / "r")
    assert_same_end(resume(folder, quiet=True), finished)
    adapters = [load_file(f / "adapter" / "adapter_model.safetensors") for f in (folder, finished)]
    assert all(torch.equal(adapters[0][name], adapters[1][name]) for name in adapters[1])


@pytest.mark.parametrize(
    "method", [m if m == "lora" else pytest.param(m, marks=pytest.mark.slow) for m in METHODS]
)
def test_every_method_trains_and_resumes(method, recipe, tmp_path):
    complete = train(recipe.changed(method=method), tmp_path / "complete", quiet=True)
    assert_same_end(resume(unfinished(complete, tmp_path / "r"), quiet=True), complete)


def test_a_created_run_trains_when_it_is_resumed(recipe, finished, tmp_path):
    folder = create_run(recipe, tmp_path / "r")
    assert not (folder / "metrics.jsonl").exists()
    with pytest.raises(ValueError, match="holds a run already"):
        create_run(recipe, folder)
    assert_same_end(resume(folder, quiet=True), finished)


def test_other_weights_are_rejected_on_resume(base, recipe, tmp_path):
    shutil.copytree(base / "model", tmp_path / "model")
    folder = create_run(recipe.changed(start=str(tmp_path / "model")), tmp_path / "r")
    made("llama", seed=5, max_position_embeddings=1024).save_pretrained(tmp_path / "model")
    with pytest.raises(ValueError, match=r"the model .* has changed since this run began; restore"):
        resume(folder, quiet=True)


def test_another_method_is_rejected_on_resume(finished, tmp_path):
    folder = unfinished(finished, tmp_path / "r")
    text = (folder / "recipe.yaml").read_text()
    (folder / "recipe.yaml").write_text(text.replace("method: dex", "method: kvo-only"))
    with pytest.raises(ValueError, match="holds other parameters than this model trains, such as"):
        resume(folder, quiet=True)


def test_a_synthetic_task_needs_a_model_without_tokenizer(recipe, tmp_path):
    with pytest.raises(ValueError, match="task: got 'needle', whose tokens mean nothing to"):
        train(SMALL.changed(model={}, start=recipe.start), tmp_path / "r", quiet=True)
    assert not (tmp_path / "r").exists()
    first = train(SMALL.changed(steps=10), tmp_path / "first", quiet=True)
    second = SMALL.changed(model={}, start=str(first), steps=10)
    train(second, tmp_path / "second", quiet=True)
    losses = [read_metrics(tmp_path / name)[0]["loss"] for name in ("first", "second")]
    assert losses[1] < losses[0]  # it starts from what was learned
    more = {**SMALL.task_options, "values": 5}
    with pytest.raises(ValueError, match=r"vocabulary of 43 is larger than that of .*, 42"):
        train(second.changed(task_options=more), tmp_path / "third", quiet=True)


def test_a_language_task_needs_a_model_with_tokenizer(recipe, tmp_path):
    first = train(SMALL.changed(steps=10), tmp_path / "first", quiet=True)
    with pytest.raises(ValueError, match="cannot be loaded as a causal model with a tokenizer"):
        train(recipe.changed(start=str(first)), tmp_path / "r", quiet=True)


def test_two_runs_do_not_share_a_folder(recipe, tmp_path):
    folder = create_run(recipe, tmp_path / "r")
    with (
        exclusive_lock(folder / LOCK),
        pytest.raises(ValueError, match="another process is working in this folder"),
    ):
        resume(folder, quiet=True)
