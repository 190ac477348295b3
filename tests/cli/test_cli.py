"""The command line, as a user meets it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from antiphase.cli import app

SMALL = ["--length", "64", "--heads", "2", "--width", "8", "--rounds", "2", "--threads", "1"]


def invoke(*arguments: str):
    return CliRunner().invoke(app, list(arguments))


def test_doctor_names_the_level(cxx):
    result = invoke("doctor")
    assert result.exit_code == 0, result.output
    assert "C++ level" in result.output
    assert "brgemm fp32" in result.output


def test_bench_writes_a_table_json_and_a_picture(tmp_path: Path):
    json_file, picture = tmp_path / "out" / "bench.json", tmp_path / "out" / "bench.png"
    result = invoke("bench", "attention", *SMALL, "--json", str(json_file), "--plot", str(picture))
    assert result.exit_code == 0, result.output
    run = json.loads(json_file.read_text())
    assert {c["setting"]["dtype"] for c in run["cells"]} == {"fp32", "bf16"}
    rows = run["cells"][0]["rows"]
    standard = [r for r in rows if r["name"].startswith("standard")]
    assert [r["backward"] for r in standard] == [False, True]
    assert all(r["wall"]["median"] == 1.0 for r in standard)
    assert all(r["milliseconds"] > 0 and r["gflops"] > 0 for r in rows)
    assert len({r["name"] for r in rows}) >= 5
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_bench_of_decoding():
    result = invoke("bench", "attention", *SMALL, "--queries", "1", "--no-backward")
    assert result.exit_code == 0, result.output
    assert "1 query rows" in result.output
    assert "forward + backward" not in result.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--dtype", "int8"], "--dtype: got 'int8', allowed are fp32, bf16, fp16"),
        (["--heads", "3"], "--heads: got 3"),
        (["--length", "0"], "--length: got 0"),
        (["--rounds", "0"], "--rounds: got 0"),
        (["--queries", "0"], "--queries: got 0"),
        (["--threads", "0"], "--threads: got 0"),
        (["--queries", "100"], "--queries: got 100"),
    ],
)
def test_bad_options_are_refused(options: list[str], message: str):
    result = invoke("bench", "attention", *SMALL, *options)
    assert result.exit_code == 2
    assert message in result.output


def test_build_kernels_without_a_compiler(tmp_path: Path):
    result = subprocess.run(
        [sys.executable, "-m", "antiphase", "build-kernels"],
        env={"PATH": "", "CXX": "/nowhere/c++", "ANTIPHASE_CACHE": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2
    assert "could not be built: no C++ compiler" in result.stderr
    assert "Traceback" not in result.stderr


def saved(folder: Path, vocabulary: int = 61) -> Path:
    """Save a tiny model with a tokenizer of single letters."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from tests.models.tiny import model

    letters = {chr(ord("A") + i): i for i in range(58)} | {"<unk>": 58}
    tokenizer = Tokenizer(models.WordLevel(letters, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>").save_pretrained(folder)
    model("diff_v1", vocab_size=vocabulary).save_pretrained(folder)
    return folder


def test_generate_goes_on_from_a_prompt(tmp_path: Path):
    folder = saved(tmp_path / "model")
    options = ["--max-new-tokens", "7", "--temperature", "0"]
    first = invoke("generate", str(folder), "Hello", *options)
    assert first.exit_code == 0, first.output
    assert first.stdout.strip().startswith("Hello")
    assert len(first.stdout.strip()) > len("Hello")
    assert invoke("generate", str(folder), "Hello", *options).stdout == first.stdout
    drawn = [
        invoke("generate", str(folder), "Hello", "--temperature", "3", "--seed", seed).stdout
        for seed in ("1", "2")
    ]
    assert drawn[0] != drawn[1]


def test_generate_says_what_is_missing(tmp_path: Path, capsys):
    from tests.models.tiny import model

    model("diff_v1").save_pretrained(tmp_path)
    for arguments, message in {
        (str(tmp_path), "Hello"): "has no tokenizer that transformers can load",
        (str(tmp_path / ".."), "Hello"): "no config.json in it",
    }.items():
        result = invoke("generate", *arguments)
        assert isinstance(result.exception, ValueError)
        assert message in str(result.exception)
    small = saved(tmp_path / "small", vocabulary=30)
    assert "do not belong together" in str(invoke("generate", str(small), "hello").exception)
    assert "prompt: is empty" in str(invoke("generate", str(small), "").exception)
    assert invoke("generate", str(small), "A", "--max-new-tokens", "0").exit_code == 2


def test_show_a_preset_and_a_saved_model(tmp_path: Path):
    result = invoke("show", "nano", "--every")
    assert result.exit_code == 0, result.output
    assert "412,288" in result.output
    for name in ("low_rank_noise", "signed_mask", "300 (asked for 344"):
        assert name in result.output
    folder = saved(tmp_path / "model")
    result = invoke("show", str(folder))
    assert "diff_v1" in result.output
    assert "4 heads, 8 maps, 4 kv heads" in result.output
    assert "sink" in invoke("show", str(folder), "--attention", "sink").output


def test_show_says_why_a_mechanism_does_not_fit(tmp_path: Path):
    result = invoke("show", "small", "--every", "--attention", "grouped")
    assert result.exit_code == 0, result.output
    odd = invoke("show", "nano", "--attention", "nonsense")
    assert "allowed are standard, diff_v1" in str(odd.exception)
    assert "presets are nano" in str(invoke("show", "nowhere").exception)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert "is a 'llama' model" in str(invoke("show", str(tmp_path)).exception)
    assert invoke("show", "nano", "--context", "0").exit_code == 2
    assert invoke("show", "nano", "--dtype", "int8").exit_code == 2


def test_import_weights_there_and_back(tmp_path: Path):
    saved(tmp_path / "ours")
    result = invoke("import-weights", str(tmp_path / "ours"), str(tmp_path / "theirs"))
    assert result.exit_code == 0, result.output
    assert "DiffLlamaForCausalLM" in result.output
    result = invoke("import-weights", str(tmp_path / "theirs"), str(tmp_path / "back"))
    assert "AntiphaseForCausalLM" in result.output
    options = ["Hello", "--max-new-tokens", "9", "--temperature", "0"]
    texts = [
        invoke("generate", str(tmp_path / n), *options).stdout for n in ("ours", "theirs", "back")
    ]
    assert texts[0] == texts[1] == texts[2]


def test_bench_of_models_compares_equal_parameters(tmp_path: Path):
    file = tmp_path / "model.json"
    result = invoke(
        *("bench", "model", "--size", "nano", "--length", "32", "--new-tokens", "2"),
        *("--rounds", "2", "--kv-heads", "2", "--json", str(file)),
    )
    assert result.exit_code == 0, result.output
    run = json.loads(file.read_text())
    assert [comparison["title"].split(",")[0].split()[0] for comparison in run["comparisons"]] == [
        "training",
        "forward",
        "decoding",
    ]
    entries = run["comparisons"][0]["entries"]
    assert {e["name"] for e in entries} >= {
        "standard",
        "diff_v1",
        "diff_v2",
        "DiffLlama, accelerated",
    }
    counts = [e["parameters"] for e in entries]
    assert max(counts) / min(counts) < 1.01
    assert all(e["seconds"] > 0 for e in entries)
    assert invoke("bench", "model", "--dtype", "fp8").exit_code == 2
    assert invoke("bench", "model", "--rounds", "0").exit_code == 2
    assert invoke("bench", "model", "--race", "sleeping").exit_code == 2


TINY = ["--set", "model={hidden_size: 32, num_hidden_layers: 1}", "--set", "batch_size=8"]
TINY += ["--set", "task_options={length: 16, needles: 2, keys: 4}", "--set", "evaluate_every=10"]


def test_train_compare_and_go_on(tmp_path: Path):
    folders = []
    for attention, seed in (("standard", "0"), ("standard", "1"), ("diff_v1", "0")):
        folder = tmp_path / f"{attention}-{seed}"
        made = invoke(
            *("train", "--task", "needle", "--attention", attention, "--seed", seed),
            *("--steps", "20", "--out", str(folder), *TINY),
        )
        assert made.exit_code == 0, made.output
        folders.append(str(folder))
    assert "wrote" in invoke("train", "--resume", folders[0]).output
    again = invoke("train", "--task", "needle", "--out", folders[0], *TINY)
    assert "overwrite with --force" in str(again.exception)
    picture = tmp_path / "curves.png"
    result = invoke("compare", *folders, "--plot", str(picture))
    assert result.exit_code == 0, result.output
    assert "±" in result.output  # two seeds of standard
    assert picture.read_bytes().startswith(b"\x89PNG")
    mixed = invoke("compare", folders[0], str(tmp_path))
    assert mixed.exit_code == 0
    assert "is no run (no recipe.yaml in it); left out" in mixed.output
    assert "no ended run among" in invoke("compare", str(tmp_path)).output
    assert "would count twice" in str(invoke("compare", folders[0], folders[0]).exception)
    assert invoke("compare", folders[0], "--plot", str(tmp_path / "x")).exit_code == 2
    assert invoke("train", "--resume", folders[0], "--steps", "9").exit_code == 2


def test_train_says_what_is_missing():
    assert "needle-nano" in invoke("train", "--list").output
    assert invoke("train").exit_code == 2
    assert "no built-in" in str(invoke("train", "nonsense").exception)


def test_task_shows_examples():
    result = invoke("task", "needle", "--show", "2", "--set", "needles=2", "--set", "noise=0.9")
    assert result.exit_code == 0, result.output
    assert result.output.count("<bos>") == 2
    assert "haystack" in result.output
    assert "allowed are needle" in str(invoke("task", "hay").exception)


def test_bench_of_training_compares_the_same_steps():
    result = invoke("bench", "training", "--steps", "2", *TINY)
    assert result.exit_code == 0, result.output
    assert "run / bare loop, wall" in result.output
    assert invoke("bench", "training", "--steps", "0").exit_code == 2
