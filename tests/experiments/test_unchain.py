"""Unchaining: every method, killed and resumed; invalid settings are named."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel
from typer.testing import CliRunner

from antiphase.analysis.before_after import BeforeAfterOptions, ModelScores
from antiphase.cli import app
from antiphase.experiments.unchain import LOCK, unchain_run, unchain_settings
from antiphase.pretrained import UnchainedModel
from antiphase.pretrained.base_model import load_base
from antiphase.pretrained.methods import METHODS
from antiphase.tasks.text.tokenizer import make_tokenizer
from antiphase.training.divergence import DivergenceError
from antiphase.training.locks import exclusive_lock
from tests.pretrained.small import made, tuning_recipe, write_base

ADAPTERS = ("dex", "adapter-only", "lora")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_base(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def recipe(base):
    return tuning_recipe(base)


OPTIONS = BeforeAfterOptions(sequences=3, questions=5, question_length=300, needles=1)


def slow_but(*kept):
    """Return all methods; those that are not kept run in `make test-all` only."""
    return [m if m in kept else pytest.param(m, marks=pytest.mark.slow) for m in METHODS]


@pytest.mark.parametrize("method", slow_but("dex"))
def test_a_method_ends_with_a_plain_model(method, recipe, tmp_path):
    folder, mine = tmp_path / "runs" / method, recipe.changed(method=method)
    results = unchain_run(mine, OPTIONS, folder, quiet=True)
    before, after = (ModelScores.from_json(results[side]) for side in ("before", "after"))
    assert len(before.loss) == 3
    assert len(after.correct) == 5
    assert not np.array_equal(before.loss, after.loss)  # something was learned
    total = after.answer + after.noise + after.sink
    assert ((total > 0.9) & (total < 1)).all()  # the rest is on the row's own token
    plain = AutoModelForCausalLM.from_pretrained(folder / "model")
    kind = "AntiphaseForCausalLM" if method == "v2" else "LlamaForCausalLM"
    assert type(plain).__name__ == kind
    assert (folder / "adapter").is_dir() == (method in ADAPTERS)
    assert len(results["lam"]) == (2 if method in ADAPTERS[:2] else 0)
    assert len(results["operation"]) == (3 if method in ADAPTERS[:2] else 0)
    assert not (folder / "checkpoints").exists()
    card = (folder / "README.md").read_text()
    assert f"{results['trained_parameters']:,} parameters trained for 8 steps" in card
    assert "needles found at depth 0.75" in card
    assert ("\n\nOperation: " in card) == (method in ADAPTERS[:2])
    assert (folder / "change.png").stat().st_size > 5_000
    assert unchain_run(mine, OPTIONS, folder) == results


def test_benchmarks_are_evaluated_before_and_after(recipe, tmp_path, monkeypatch):
    pytest.importorskip("lm_eval", reason="needs lm-evaluation-harness: antiphase[evaluate]")
    from tests.evaluation.small_benchmarks import install_small

    options = replace(
        OPTIONS, benchmarks=["lambada"], benchmark_items=3, benchmark_dtype="bfloat16"
    )
    monkeypatch.setenv("ANTIPHASE_CACHE", str(tmp_path / "empty"))
    with pytest.raises(ValueError, match=r"lambada: needs lambada, .* antiphase data benchmarks"):
        unchain_run(recipe, options, tmp_path / "run", quiet=True)
    install_small(tmp_path, monkeypatch)
    results = unchain_run(recipe, options, tmp_path / "run", quiet=True)
    measure = results["benchmarks"]["tasks"]["lambada"]["measures"]["bits per byte"]
    before, after = (model["value"] for model in measure["models"])
    assert measure["difference"]["value"] == pytest.approx(after - before)
    assert before != after
    assert "lambada: bits per byte" in (tmp_path / "run" / "README.md").read_text()
    assert unchain_run(recipe, options, tmp_path / "run") == results


def test_a_recorded_run_whose_results_were_deleted_is_done_again(recipe, tmp_path):
    """Of a record there are a recipe and results, but nothing that training could resume from."""
    first = unchain_run(recipe, OPTIONS, tmp_path / "run", quiet=True, keep_model=False)
    recorded = tmp_path / "recorded"
    recorded.mkdir()
    (recorded / "recipe.yaml").write_text((tmp_path / "run" / "recipe.yaml").read_text())
    again = unchain_run(recipe, OPTIONS, recorded, quiet=True, keep_model=False)
    assert again["after"] == first["after"]
    assert again["trained_parameters"] == first["trained_parameters"] > 0


def test_the_adapter_of_a_run_is_its_model(recipe, tmp_path):
    unchain_run(recipe, OPTIONS, tmp_path / "run", quiet=True)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model")
    again = UnchainedModel.from_pretrained(
        load_base(recipe.start).model, tmp_path / "run" / "adapter"
    )
    assert again.step == 8
    ids = torch.arange(40)[None]
    with torch.no_grad():
        torch.testing.assert_close(plain(ids).logits, again(ids).logits, rtol=1e-4, atol=1e-4)


def test_methods_share_data_and_the_first_step(recipe, tmp_path):
    """At step 0 every method is the base model, so the first loss is the same."""
    first = {}
    for method in METHODS:
        folder = tmp_path / "runs" / method
        mine = recipe.changed(method=method, steps=2, log_every=1)
        unchain_run(mine, OPTIONS, folder, quiet=True, keep_model=False, shared=tmp_path)
        first[method] = json.loads((folder / "metrics.jsonl").read_text().splitlines()[0])["loss"]
        assert not (folder / "model").exists()
    assert np.ptp(list(first.values())) < 1e-5, first


def test_killed_and_resumed_the_end_is_the_same(recipe, tmp_path):
    long = recipe.changed(steps=60, checkpoint_every=10)
    complete = unchain_run(long, OPTIONS, tmp_path / "complete" / "run", quiet=True)
    folder = tmp_path / "killed" / "run"
    (tmp_path / "recipe.yaml").write_text(long.as_yaml())
    code = (
        "import sys; from pathlib import Path\n"
        "from antiphase.experiments.unchain import BeforeAfterOptions, unchain_run\n"
        "from antiphase.training import load_recipe\n"
        f"unchain_run(load_recipe(sys.argv[1]), {OPTIONS!r}, Path(sys.argv[2]), quiet=True)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "recipe.yaml"), str(folder)]
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})
    while not (folder / "checkpoints" / "checkpoint-10" / "manifest.json").exists():
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (folder / "results.json").exists()
    results = unchain_run(long, OPTIONS, folder, quiet=True)
    assert results["after"] == complete["after"]
    adapters = [
        load_file(tmp_path / kind / "run" / "adapter" / "adapter_model.safetensors")
        for kind in ("complete", "killed")
    ]
    assert all(torch.equal(adapters[0][name], adapters[1][name]) for name in adapters[0])


def test_other_settings_in_a_folder_are_rejected(recipe, tmp_path):
    unchain_run(recipe, OPTIONS, tmp_path / "run", quiet=True)
    with pytest.raises(ValueError, match=r"was started with steps=8, not 9; resume with the same"):
        unchain_run(recipe.changed(steps=9), OPTIONS, tmp_path / "run")
    with pytest.raises(ValueError, match=r"was started with evaluation.questions=5, not 6"):
        unchain_run(recipe, replace(OPTIONS, questions=6), tmp_path / "run")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("dear")
    with pytest.raises(ValueError, match="holds something that is no run"):
        unchain_run(recipe, OPTIONS, tmp_path / "other")


def test_one_process_at_a_time_works_in_a_folder(recipe, tmp_path):
    folder = tmp_path / "run"
    unchain_run(recipe, OPTIONS, folder, quiet=True)
    (folder / "results.json").unlink()
    second = threading.Thread(target=lambda: unchain_run(recipe, OPTIONS, folder, quiet=True))
    with exclusive_lock(folder / LOCK):
        second.start()
        second.join(1.5)
        assert second.is_alive()
        assert not (folder / "results.json").exists()
    second.join(60)
    assert (folder / "results.json").exists()


def test_what_changed_under_the_same_name_is_noticed(base, recipe, tmp_path):
    shutil.copytree(base, tmp_path / "base")
    place = tmp_path / "base"
    options = {**recipe.task_options, "text": [str(place / "text.txt")]}
    mine = recipe.changed(start=str(place / "model"), task_options=options, steps=2)
    first = unchain_run(mine, OPTIONS, tmp_path / "a", quiet=True)
    made("llama", seed=5, max_position_embeddings=1024).save_pretrained(place / "model")
    second = unchain_run(mine, OPTIONS, tmp_path / "b", quiet=True)
    assert first["before"]["loss"] != second["before"]["loss"]
    (tmp_path / "a" / "results.json").unlink()
    with pytest.raises(ValueError, match=r"the model .* has changed since this run began"):
        unchain_run(mine, OPTIONS, tmp_path / "a", quiet=True)


def test_a_mistake_leaves_no_folder_and_costs_no_time(recipe, tmp_path, monkeypatch):
    def never(*_):
        raise AssertionError("it was measured first")

    monkeypatch.setattr("antiphase.experiments.unchain.score_model", never)
    gpt = GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=257))
    gpt.save_pretrained(tmp_path / "gpt")
    make_tokenizer("bytes", []).save_pretrained(tmp_path / "gpt")
    for mine, options in (
        (recipe.changed(start=str(tmp_path / "gpt")), OPTIONS),
        (recipe.changed(task_options={"text": ["nowhere.txt"], "length": 32}), OPTIONS),
        (recipe, replace(OPTIONS, needles=40)),
    ):
        with pytest.raises(
            ValueError, match=r"no attention with|nowhere.txt|no room for a haystack"
        ):
            unchain_run(mine, options, tmp_path / "run")
        assert not (tmp_path / "run").exists()


def test_a_loss_that_is_not_finite_stops_the_run(recipe, tmp_path):
    with pytest.raises(DivergenceError, match=r"step \d: the loss is .*; lower lr"):
        unchain_run(recipe.changed(method="full", lr=1e30), OPTIONS, tmp_path / "run", quiet=True)
    assert not (tmp_path / "run" / "model").exists()


def test_broken_files_are_named(recipe, tmp_path, base):
    (tmp_path / "run").mkdir()
    for text in ("[]", "{", ""):
        (tmp_path / "run" / "recipe.yaml").write_text(text)
        with pytest.raises(ValueError, match=r"run/recipe.yaml: (expected fields|is not YAML)"):
            unchain_run(recipe, OPTIONS, tmp_path / "run")
    shutil.copytree(base / "model", tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ValueError, match="cannot be loaded as a causal model"):
        load_base(str(tmp_path / "model"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("method=dx", "method: got 'dx', allowed are dex, adapter-only"),
        ("precision=fp8", "precision: got 'fp8', allowed are fp32, bf16"),
        ("steps=0", "steps: got 0, expected at least 1"),
        ("lr=-1", "lr: got -1.0, expected a number above 0"),
        ("method_options.fraction=2", "fraction: got 2.0, expected more than 0 and at most 1"),
        ("method_options.heads=best", "heads: got 'best', allowed are entropy"),
        ("method_options.anneal=0", "anneal: got 0, expected at least 1"),
        ("method_options.depth=3", "method 'dex' has no option 'depth'; its options are heads"),
        ("threads=0", "threads: got 0, expected at least 1"),
        ("warmup=-5", "warmup: got -5.0, expected at least 0"),
        ("checkpoint_every=0", "checkpoint_every: got 0"),
        ("depth=3", "recipe: has no field 'depth'; its fields are size"),
        ("steps=many", "steps: got 'many'"),
        ("evaluation.questions=0", "evaluation, questions: got 0, expected at least 1"),
        ("evaluation.answers=3", "evaluation has no option 'answers'; its options are sequences"),
    ],
)
def test_bad_settings_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        unchain_settings([change])


def test_a_dtype_of_benchmarks_that_does_not_exist_is_named():
    settings = ["evaluation.benchmarks=[lambada]", "evaluation.benchmark_dtype=int8"]
    with pytest.raises(ValueError, match=r"dtype: got 'int8', allowed are float32, bfloat16"):
        unchain_settings(settings)


def test_a_model_that_does_not_exist_is_named(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ValueError, match=r"nowhere: is not on this machine.*give one of .*smollm2"):
        load_base("nowhere")


def test_settings_take_lists_and_words():
    settings = ["method_options.heads=[[0], [1, 2]]", "lr=5e-5", "evaluation.sequences=7"]
    recipe, options = unchain_settings(settings, text=["a.txt"], steps=90)
    assert recipe.method_options["heads"] == [[0], [1, 2]]
    assert recipe.task_options == {"length": 256, "text": ["a.txt"]}
    assert (recipe.lr, recipe.steps, options.sequences) == (5e-5, 90, 7)


def test_the_command_prints_before_and_after(recipe, tmp_path):
    text = recipe.task_options["text"][0]
    arguments = ["unchain", recipe.start, "--text", text, "--steps", "4"]
    for name in ("batch_size", "precision", "calibration_examples", "evaluate_examples"):
        arguments += ["--set", f"{name}={getattr(recipe, name)}"]
    arguments += ["--set", "task_options.length=32"]
    for name, value in vars(OPTIONS).items():
        arguments += ["--set", f"evaluation.{name}={value}"]
    done = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    assert "perplexity" in done.output
    assert "tokens/s" in done.output
    assert "% of the heads' output; below 5%: it never switched on" in done.output
    again = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "run"), "--json"])
    assert 0 < json.loads(again.stdout)["operation"] < 0.05
    listed = CliRunner().invoke(app, ["unchain", "--list"])
    assert all(method in listed.output for method in METHODS)
