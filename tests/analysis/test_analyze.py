"""The metrics of one model, on a synthetic task or on text, and which input raises."""

import io
import json
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from rich.console import Console
from transformers import LlamaConfig, LlamaForCausalLM
from typer.testing import CliRunner

from antiphase.analysis import capture, plots
from antiphase.analysis.analyze import Analysis, DrawnSequence, analyze
from antiphase.analysis.metrics.flow import logit_change
from antiphase.analysis.plots import draw_analysis
from antiphase.analysis.retrieval_heads import retrieval_heads
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
    assert target.tokens[0] == "<bos>"
    assert len(target.tokens) == 16
    others = target.validation[0]
    assert not (others[:, None] == target.ids[None]).all(-1).any()  # no sequence is in both
    found = analyze(
        target.model, target.ids, target.truth, validation=target.validation, tokens=target.tokens
    )
    assert [(row["layer"], row["head"]) for row in found.heads] == [(0, 0), (0, 1)]
    for row in found.heads:
        assert sum(row[f"mass on {kind}"] for kind in ("R", "I", "S", "own")) == pytest.approx(1)
        assert {"lam", "optimal lam", "CMRR, dB", "signal gain", "effective rank, lam A2"} <= set(
            row
        )
        for kind in ("I", "R"):
            agreement = f"corr on {kind}"
            assert {agreement, f"{agreement}, other head", f"{agreement}, other example"} <= set(
                row
            )
        assert all(np.isfinite(v) for v in row.values())
        assert 1 <= row["effective rank, A"] <= 8
    assert 0 <= found.layers[0]["attention x gradient on R"] <= 1
    assert -1 <= found.layers[0]["cos(noise term, residual)"] <= 1
    assert found.branches[0]["attention / stream"] > 0
    one = logit_change(target.model, target.ids, target.truth, layer=0, head=1).mean()
    assert found.heads[1]["logit drop, no A2"] == pytest.approx(float(one))
    names = {p.name for p in draw_analysis(found, tmp_path)}
    assert names == {"maps.png", "rank.png", "singular.png", "lambda.png", "depth.png"}
    json.loads(json.dumps(found.as_json(), allow_nan=False))


def test_retrieval_heads_are_chosen_on_the_validation_examples():
    target = load_target("diff_v1", text=None, task=None, sequences=8, length=None)
    found = analyze(target.model, target.ids, target.truth, validation=target.validation)
    ids, truth = target.validation
    by_hand = retrieval_heads(capture(target.model, ids, truth.rows), truth)
    assert [m.tolist() for m in found.retrieval.layers] == [m.tolist() for m in by_hand.layers]
    assert found.retrieval.largest == by_hand.largest > 3 * by_hand.uniform
    assert not found.is_retrieval_head(0, 0)  # layer 0 has none
    assert found.retrieval_means[0] is None
    inside = [row for row in found.heads if found.is_retrieval_head(row["layer"], row["head"])]
    mean = np.mean([row["mass on R"] for row in inside])
    assert found.retrieval_means[1]["mass on R"] == pytest.approx(mean)
    assert found.retrieval_means[-1]["mass on R"] == pytest.approx(mean)
    assert set(found.mass_by_depth) == {"all heads", "retrieval heads"}
    kept = found.as_json()["retrieval_heads"]
    assert kept["layers"] == [[], [0, 1, 2, 3]]
    assert kept["means_by_layer"][0] is None
    text = printed(found, 120)
    assert "0.0 " in text
    assert "1.0*" in text
    assert "0 of 4" in text
    assert "another head is no fair null" not in re.sub(r"\s+", " ", text)  # four heads per layer


def test_with_two_heads_per_layer_another_head_is_no_fair_null(run):
    target = load_target(str(run), text=None, task=None, sequences=2, length=None)
    text = printed(analyze(target.model, target.ids, target.truth), 120)
    assert "another head is no fair null" in re.sub(r"\s+", " ", text)


def test_batches_do_not_change_the_metrics(run, monkeypatch):
    target = load_target(str(run), text=None, task=None, sequences=5, length=None)
    complete = analyze(target.model, target.ids, target.truth)
    rows = target.truth.relevant[0].numel()
    heads = target.model.config.num_attention_heads * target.model.config.num_hidden_layers
    monkeypatch.setattr("antiphase.analysis.analyze.MAP_ELEMENTS", 2 * heads * rows)
    batched = analyze(target.model, target.ids, target.truth)  # 2 + 2 + 1 sequences
    for one, other in zip(complete.heads, batched.heads, strict=True):
        assert one.keys() == other.keys()
        for name in one.keys() - {"corr on I, other example", "corr on R, other example"}:
            assert one[name] == pytest.approx(other[name], abs=1e-6), name


def test_one_sequence_has_no_other_example(run):
    target = load_target(str(run), text=None, task=None, sequences=1, length=None)
    found = analyze(target.model, target.ids, target.truth)
    assert "corr on I, other head" in found.heads[0]
    assert "corr on I, other example" not in found.heads[0]


def test_map_figures_name_layer_head_and_sequence_and_mark_the_answer(monkeypatch, tmp_path):
    maps = [{n: np.tril(np.ones((2, 40, 40))) for n in ("A1", "A2", "A1 - lam A2")}]
    tokens = [f"t{i}" for i in range(39)] + ["$a\n"]
    sequence = DrawnSequence(tokens, maps, row=38, relevant=[10, 11, 25])
    heads = [{"layer": 0, "head": h, "mass on R": 0.2 + h / 2} for h in range(2)]
    figures = []
    monkeypatch.setattr(plots, "_saved", lambda plt, path: figures.append(plt.gcf()) or path)
    plots._maps(matplotlib_pyplot(), Analysis("diff_v1", heads, []), sequence, tmp_path / "x.png")
    panels = [axis for axis in figures[0].axes if axis.get_title()]
    assert [axis.get_title() for axis in panels] == [
        "layer 0, head 1, sequence 0: A1",
        "layer 0, head 1, sequence 0: A2",
        "layer 0, head 1, sequence 0: A1 - lam A2",
    ]
    assert len(figures[0].axes) == 6  # a colour bar each
    for axis in panels:
        for labels in (axis.get_xticklabels(), axis.get_yticklabels()):
            names = [label.get_text() for label in labels]
            assert {"t0", "t10 t11", "t25", "t38"} <= set(names)
            assert len(names) <= plots.MOST_LABELS + 4
            green = [label.get_text() for label in labels if label.get_color() == plots.ANSWER]
            assert green == ["t10 t11", "t25"]
        frames = [patch.get_bbox().bounds for patch in axis.patches]
        assert frames == [(9.5, -0.5, 2, 40), (24.5, -0.5, 1, 40), (-0.5, 37.5, 40, 1)]
    assert "row 38" in figures[0].get_suptitle()


def matplotlib_pyplot():
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def test_short_sequences_label_every_token():
    sequence = DrawnSequence([f"t{i}" for i in range(12)], [], row=11, relevant=[3, 4])
    places, labels, marked = plots._token_ticks(sequence)
    assert places == list(range(12))
    assert labels == sequence.tokens
    assert marked == [3, 4]
    assert plots._label(" the\n") == " the\\n"
    assert plots._label("a" * 20) == "a" * 11 + "…"


def test_a_foreign_model_is_analysed_on_text(foreign):
    target = load_target(str(foreign), text=["stdlib"], task=None, sequences=2, length=300)
    found = analyze(target.model, target.ids, target.truth)
    assert len(found.heads) == 8
    assert "lam" not in found.heads[0]
    assert "mass on R" not in found.heads[0]
    assert found.heads[7]["effective rank, A"] >= 1
    assert found.heads[0]["mass on own"] > 0
    assert found.retrieval is None
    assert found.branches == []
    assert found.drawn.maps[0]["A"].shape == (4, 256, 256)  # the start of a long sequence
    assert found.drawn.row is None


def printed(analysis, width):
    console = Console(width=width, file=io.StringIO())
    for table in tables(analysis, "a model", width):
        console.print(table)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [40, 80, 200])
def test_tables_keep_their_digits_at_any_width(width):
    metrics = {"mass on R": 0.123456, "optimal lam": -1.23456e-05, "CMRR, dB": -12.3456}
    heads = [{"layer": i // 4, "head": i % 4, **metrics} for i in range(16)]
    layers = [{"layer": i, "cos(noise term, residual)": -0.0123456} for i in range(4)]
    text = printed(Analysis("diff_v1", heads, layers), width)
    assert "…" not in text
    for digits in ("0.123", "-1.23e-05", "-12.3"):
        assert text.count(digits) == 16
    assert text.count("-0.0123") == 4
    assert max(map(len, text.splitlines())) <= width


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
