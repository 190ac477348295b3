"""A pretrained model changed by a run: every method, killed and gone on with, beside controls."""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel
from typer.testing import CliRunner

from antiphase.analysis.before_after import Measured
from antiphase.cli import app
from antiphase.experiments.e14_dex import PREDICTIONS, _effect, compare_controls
from antiphase.experiments.unchain import Settings, load_base, settings_of, unchain_run
from antiphase.pretrained import UnchainedModel
from antiphase.pretrained.methods import CONTROLS, METHODS
from antiphase.tasks.text.tokenizer import make_tokenizer
from tests.pretrained.small import made


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    model = made("llama", max_position_embeddings=1024)
    model.save_pretrained(folder / "model")
    make_tokenizer("bytes", []).save_pretrained(folder / "model")
    lines = [f"line {i} says {i * i % 97} and {'abc'[i % 3]}\n" for i in range(3000)]
    (folder / "text.txt").write_text("".join(lines))
    return folder


@pytest.fixture(scope="module")
def settings(base):
    return Settings(
        model=str(base / "model"),
        text=[str(base / "text.txt")],
        steps=8,
        batch_size=2,
        length=32,
        lr=1e-3,
        precision="fp32",
        threads=1,
        calibration=2,
        held_out=3,
        questions=5,
        question_length=300,
        needles=1,
        log_every=2,
        checkpoint_every=4,
    )


@pytest.mark.parametrize("method", METHODS)
def test_a_method_ends_with_a_plain_model(method, settings, tmp_path):
    folder = tmp_path / "runs" / method
    results = unchain_run(dataclasses.replace(settings, method=method), folder, quiet=True)
    before, after = (Measured.of_json(results[side]) for side in ("before", "after"))
    assert len(before.loss) == 3
    assert len(after.right) == 5
    assert not np.array_equal(before.loss, after.loss)  # something was learned
    np.testing.assert_allclose(after.answer + after.noise + after.sink, 1, atol=1e-5)
    plain = AutoModelForCausalLM.from_pretrained(folder / "model")
    kind = "AntiphaseForCausalLM" if method == "v2" else "LlamaForCausalLM"
    assert type(plain).__name__ == kind
    assert (folder / "adapter").is_dir() == (method in ("dex", "plus-sign", "adapter-only", "lora"))
    assert not (folder / "checkpoints").exists()
    card = (folder / "README.md").read_text()
    assert f"{results['trained_parameters']:,} numbers trained for 8 steps" in card
    assert "needles found at depth 0.75" in card
    assert (folder / "change.png").stat().st_size > 5_000
    assert unchain_run(dataclasses.replace(settings, method=method), folder) == results


def test_the_adapter_of_a_run_is_its_model(settings, tmp_path):
    unchain_run(settings, tmp_path / "run", quiet=True)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model")
    again = UnchainedModel.from_pretrained(
        load_base(settings.model).model, tmp_path / "run" / "adapter"
    )
    assert again.step == 8
    ids = torch.arange(40)[None]
    with torch.no_grad():
        torch.testing.assert_close(plain(ids).logits, again(ids).logits, rtol=1e-4, atol=1e-4)


def test_methods_share_data_and_the_first_step(settings, tmp_path):
    """At step 0 every method is the base model, so the first loss is the same."""
    first = {}
    for method in METHODS:
        folder = tmp_path / "runs" / method
        one = dataclasses.replace(settings, method=method, steps=2, log_every=1)
        unchain_run(one, folder, quiet=True, keep_model=False)
        first[method] = json.loads((folder / "metrics.jsonl").read_text().splitlines()[0])["loss"]
        assert not (folder / "model").exists()
    assert np.ptp(list(first.values())) < 1e-5, first


def test_killed_and_gone_on_with_the_end_is_the_same(settings, tmp_path):
    long = dataclasses.replace(settings, steps=120, checkpoint_every=10)
    unchain_run(long, tmp_path / "whole" / "run", quiet=True)
    folder = tmp_path / "killed" / "run"
    code = (
        "import json, sys; from pathlib import Path\n"
        "from antiphase.experiments.unchain import Settings, unchain_run\n"
        "unchain_run(Settings.of_json(json.loads(sys.argv[1])), Path(sys.argv[2]), quiet=True)"
    )
    command = [sys.executable, "-c", code, json.dumps(dataclasses.asdict(long)), str(folder)]
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})
    while not (folder / "checkpoints" / "checkpoint-10" / "manifest.json").exists():
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (folder / "results.json").exists()
    results = unchain_run(long, folder, quiet=True)
    whole = json.loads((tmp_path / "whole" / "run" / "results.json").read_text())
    assert results["after"] == whole["after"]
    adapters = [
        load_file(tmp_path / kind / "run" / "adapter" / "adapter_model.safetensors")
        for kind in ("whole", "killed")
    ]
    assert all(torch.equal(adapters[0][name], adapters[1][name]) for name in adapters[0])


def test_other_settings_in_a_folder_are_refused(settings, tmp_path):
    unchain_run(settings, tmp_path / "run", quiet=True)
    with pytest.raises(ValueError, match=r"was begun with steps=8, not 9; go on with the same"):
        unchain_run(dataclasses.replace(settings, steps=9), tmp_path / "run")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("dear")
    with pytest.raises(ValueError, match="holds something that is no run"):
        unchain_run(settings, tmp_path / "other")


def test_what_changed_under_the_same_name_is_noticed(base, settings, tmp_path):
    shutil.copytree(base, tmp_path / "base")
    place = tmp_path / "base"
    mine = dataclasses.replace(
        settings, model=str(place / "model"), text=[str(place / "text.txt")], steps=2
    )
    first = unchain_run(mine, tmp_path / "a", quiet=True)
    made("llama", seed=5, max_position_embeddings=1024).save_pretrained(place / "model")
    second = unchain_run(mine, tmp_path / "b", quiet=True)
    assert first["before"]["loss"] != second["before"]["loss"]
    (tmp_path / "a" / "results.json").unlink()
    with pytest.raises(ValueError, match="was begun with other weights or another text"):
        unchain_run(mine, tmp_path / "a", quiet=True)


def test_a_mistake_leaves_no_folder_and_costs_no_time(base, settings, tmp_path, monkeypatch):
    def never(*_):
        raise AssertionError("it was measured first")

    monkeypatch.setattr("antiphase.experiments.unchain.measure", never)
    gpt = GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=257))
    gpt.save_pretrained(tmp_path / "gpt")
    make_tokenizer("bytes", []).save_pretrained(tmp_path / "gpt")
    for change in ({"model": str(tmp_path / "gpt")}, {"text": ["nowhere.txt"]}, {"needles": 40}):
        with pytest.raises(ValueError, match=r"no attention with|nowhere.txt|hold no haystack"):
            unchain_run(dataclasses.replace(settings, **change), tmp_path / "run")
        assert not (tmp_path / "run").exists()


def test_a_loss_that_is_none_stops_the_run(settings, tmp_path):
    with pytest.raises(ValueError, match=r"step \d: the loss is .*; a smaller lr may help"):
        unchain_run(dataclasses.replace(settings, method="full", lr=1e30), tmp_path / "run")
    assert not (tmp_path / "run" / "model").exists()


def test_broken_files_are_named(settings, tmp_path, base):
    (tmp_path / "run").mkdir()
    for text in ("[]", "{", ""):
        (tmp_path / "run" / "settings.json").write_text(text)
        with pytest.raises(ValueError, match=r"run/settings.json: (holds a list|cannot be read)"):
            unchain_run(settings, tmp_path / "run")
    shutil.copytree(base / "model", tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ValueError, match="cannot be loaded as a causal model"):
        load_base(str(tmp_path / "model"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("method=dx", "method: got 'dx', allowed are dex, plus-sign"),
        ("precision=fp8", "precision: got 'fp8', allowed are bf16, fp32"),
        ("steps=0", "steps: got 0, expected at least 1"),
        ("lr=-1", "lr: got -1.0, expected more than 0"),
        ("share=2", "share: got 2.0, expected more than 0 and at most 1"),
        ("heads=best", "heads: got 'best', allowed are entropy"),
        ("anneal=0", "anneal: got 0, expected at least 1"),
        ("threads=0", "threads: got 0, expected at least 1"),
        ("warmup=5", "warmup: got 5.0, expected a share"),
        ("checkpoint_every=0", "checkpoint_every: got 0"),
        ("depth=3", "--set: got 'depth=3', expected name=value of model, method"),
        ("steps=many", "steps: got 'many'"),
    ],
)
def test_bad_settings_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        settings_of([change])


def test_a_model_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ValueError, match=r"nowhere: is not on this machine.*give one of .*smollm2"):
        load_base("nowhere")


class InTurn:
    """An engine that does one job after another, here."""

    workers = 1

    def run(self, jobs, root):
        for job in jobs:
            self.on_tick([job])
            job.perform(root)
            yield job, None


def test_controls_are_compared_at_equal_budget(settings, tmp_path):
    quiet = Console(quiet=True)
    results = compare_controls(settings, tmp_path, quiet, range(2), InTurn())
    assert [row[0] for row in results["table"]] == ["base", "dex", *CONTROLS]
    assert [row[0] for row in results["against_dex"]] == [f"dex minus {c}" for c in CONTROLS]
    assert len(results["verdicts"]) == len(PREDICTIONS)
    assert "dex minus kvo-only" in (tmp_path / "controls.md").read_text()
    assert (tmp_path / "controls.png").stat().st_size > 5_000
    kept = [json.loads(p.read_text()) for p in tmp_path.glob("*/settings.json")]
    assert len(kept) == 2 * (1 + len(CONTROLS))
    own = {"method", "seed"}
    assert len({json.dumps({k: v for k, v in s.items() if k not in own}) for s in kept}) == 1
    # nothing is done again
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("results.json")}
    again = compare_controls(settings, tmp_path, quiet, range(2), InTurn())
    assert again == results
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("results.json")} == before


def planted(loss, right, seeds=3):
    random = np.random.default_rng(0)
    runs = []
    for _ in range(seeds):
        noise = random.normal(size=200) * 0.001
        side = Measured(loss + noise, np.full(200, right), np.zeros(200), noise, noise, noise)
        runs.append((side, side))
    return runs


def test_settings_take_lists_and_words():
    found = settings_of(["heads=[[0], [1, 2]]", "text=a.txt", "lr=5e-5"])
    assert found.heads == [[0], [1, 2]]
    assert found.text == ["a.txt"]
    assert found.lr == 5e-5


@pytest.mark.parametrize(
    ("gain", "claim", "doubt"),
    [(0.1, "supported", "refuted"), (0.0, "undecided", "supported"), (-0.1, "refuted", "refuted")],
)
def test_a_planted_gain_gives_the_verdict_that_follows(gain, claim, doubt):
    found = {m: planted(2.0, 0.5) for m in ("kvo-only", "plus-sign")}
    found["dex"] = planted(2.0 - gain, 0.5 + gain)
    for p in PREDICTIONS:
        verdict = p.judge(_effect(p.effect, found)).value
        assert verdict == (claim if p.reading == "claim" else doubt), p


def test_the_command_prints_before_and_after(settings, tmp_path):
    arguments = ["unchain", settings.model, "--text", settings.text[0], "--steps", "4"]
    for name in ("batch_size", "length", "precision", "calibration", "held_out", "questions"):
        arguments += ["--set", f"{name}={getattr(settings, name)}"]
    arguments += ["--set", "question_length=300", "--set", "needles=1"]
    done = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    assert "perplexity" in done.output
    assert "tokens/s" in done.output
    listed = CliRunner().invoke(app, ["unchain", "--list"])
    assert all(method in listed.output for method in METHODS)
