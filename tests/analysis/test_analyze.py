"""The metrics of one model, on a synthetic task or on text, and which input raises."""

import io
import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from rich.console import Console
from transformers import LlamaConfig, LlamaForCausalLM
from typer.testing import CliRunner

from antiphase.analysis.analyze import Analysis, analyze
from antiphase.analysis.ground_truth import without_answers
from antiphase.analysis.metrics.flow import logit_change
from antiphase.analysis.plots import draw_analysis
from antiphase.analysis.tables import tables
from antiphase.analysis.targets import load_target
from antiphase.cli import app
from antiphase.evaluation import score_answers
from antiphase.models.locate import shipped_models
from antiphase.tasks import task as task_of
from antiphase.tasks.text.tokenizer import make_tokenizer
from antiphase.training import load_recipe, train
from tests.training.small import SMALL


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(SMALL.changed(steps=10), tmp_path_factory.mktemp("run") / "r", quiet=True)


@pytest.fixture(scope="module")
def foreign(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=257,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    make_tokenizer("bytes", []).save_pretrained(folder)
    return folder


def test_a_run_is_analysed_on_its_own_task(run, tmp_path):
    target = load_target(str(run), text=None, task=None, sequences=4, length=None)
    assert target.ids.shape == (4, 16)
    found = analyze(target.model, target.ids, target.truth)
    assert [(row["layer"], row["head"]) for row in found.heads] == [(0, 0), (0, 1)]
    for row in found.heads:
        assert row["mass on R"] + row["mass on I"] + row["mass on S"] == pytest.approx(1)
        assert {"lam", "optimal lam", "CMRR, dB", "corr(A1,A2) on I", "corr on I, null"} <= set(row)
        assert all(np.isfinite(v) for v in row.values())
    assert found.layers[0]["effective rank, A2"] >= 1
    assert 0 <= found.layers[0]["attention x gradient on R"] <= 1
    assert -1 <= found.layers[0]["cos(noise term, residual)"] <= 1
    one = logit_change(target.model, target.ids, target.truth, layer=0, head=1).mean()
    assert found.heads[1]["logit drop, no A2"] == pytest.approx(float(one))
    names = {p.name for p in draw_analysis(found, tmp_path)}
    assert names == {"maps.png", "rank.png", "singular.png", "lambda.png", "depth.png"}
    json.dumps(found.as_json())


def test_a_foreign_model_is_analysed_on_text(foreign):
    target = load_target(str(foreign), text=["stdlib"], task=None, sequences=2, length=300)
    found = analyze(target.model, target.ids, target.truth)
    assert len(found.heads) == 8
    assert "lam" not in found.heads[0]
    assert "mass on R" not in found.heads[0]
    assert found.layers[1]["effective rank, A"] >= 1
    assert found.maps[0]["A"].shape == (4, 256, 256)  # the start of a long sequence


@pytest.mark.parametrize("width", [40, 80, 200])
def test_tables_keep_their_digits_at_any_width(width):
    metrics = {"mass on R": 0.123456, "optimal lam": -1.23456e-05, "CMRR, dB": -12.3456}
    heads = [{"layer": i // 4, "head": i % 4, **metrics} for i in range(16)]
    layers = [{"layer": i, "cos(noise term, residual)": -0.0123456} for i in range(4)]
    console = Console(width=width, file=io.StringIO())
    for table in tables(Analysis("diff_v1", heads, layers), "a model", width):
        console.print(table)
    text = console.file.getvalue()
    assert "…" not in text
    for digits in ("0.123", "-1.23e-05", "-12.3"):
        assert text.count(digits) == 16
    assert text.count("-0.0123") == 4
    assert max(map(len, text.splitlines())) <= width


def test_a_sequence_without_answers_has_none():
    truth = without_answers(torch.zeros(2, 10), rows=4)
    assert truth.rows.tolist() == [[6, 7, 8, 9]] * 2
    assert not truth.relevant.any()
    assert truth.visible.sum(-1).tolist() == [[7, 8, 9, 10]] * 2


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("nowhere", {}, "nowhere: is not on this machine"),
        ("foreign", {"text": ["nothing/*.txt"]}, "is no file, folder or glob"),
        ("run", {"task": "recall"}, "has a vocabulary of 42, the task recall uses"),
        ("run", {"text": ["stdlib"]}, "has no tokenizer, so it cannot be analysed on text"),
    ],
)
def test_what_cannot_be_analysed_is_named(name, options, message, run, foreign, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    place = {"run": str(run), "foreign": str(foreign)}.get(name, name)
    settings = {"text": None, "task": None, "sequences": 2, "length": None} | options
    with pytest.raises(ValueError, match=message):
        load_target(place, **settings)


def test_the_command_prints_and_writes(run, tmp_path):
    result = CliRunner().invoke(
        app, ["analyze", str(run), "--sequences", "2", "--out", str(tmp_path)]
    )
    assert result.exit_code == 0, result.output
    kept = json.loads((tmp_path / "r" / "analysis.json").read_text())
    assert len(kept["heads"]) == 2
    assert (tmp_path / "r" / "maps.png").is_file()


def test_the_shipped_models_can_do_their_task():
    found = shipped_models()
    assert set(found) == {"standard", "diff_v1", "diff_v2"}
    size = sum(p.stat().st_size for folder in found.values() for p in folder.iterdir())
    assert size < 6e6
    for name, folder in found.items():
        recipe = load_recipe(str(folder / "recipe.yaml"))
        assert recipe.attention == name
        task = task_of(recipe.task)(split="test", size=64, **recipe.task_options)
        net = load_target(name, text=None, task=None, sequences=2, length=None).model
        assert score_answers(net, task, 64)["accuracy"] > 0.97


@pytest.mark.slow
def test_a_pretrained_model_at_2048_tokens_fits_in_4_gigabytes(tmp_path):
    code = (
        "import resource, subprocess, sys\n"
        "subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    command = [sys.executable, "-m", "antiphase", "analyze", "smollm2", "--length", "2048"]
    command += ["--sequences", "2", "--out", str(tmp_path)]
    run = [sys.executable, "-c", code, *command]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    kilobytes = int(done.stdout.split()[-1])
    assert kilobytes < 4e9 / 1024
    kept = json.loads((tmp_path / "smollm2" / "analysis.json").read_text())
    assert len(kept["heads"]) == 30 * 9
    assert max(row["mass on S"] for row in kept["heads"]) > 0.5  # the sinks are visible
