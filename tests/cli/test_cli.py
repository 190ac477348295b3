"""Every command, as a user runs it."""

import json
from pathlib import Path

import pytest
import torch

from antiphase.ops.fused_cpu import native
from tests.cli.runner import invoke, save_model

SMALL = ["--length", "64", "--heads", "2", "--width", "8", "--rounds", "2", "--threads", "1"]


def test_doctor_says_that_no_gpu_ran_the_kernels():
    printed = " ".join(invoke("doctor").stdout.split())
    assert "no GPU had run them" in printed or "pip install 'antiphase[gpu]'" in printed


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_bench_on_a_gpu_that_is_not_there():
    result = invoke("bench", "attention", "--device", "cuda", "--rows", "standard")
    assert result.exit_code != 0
    assert "finds no GPU here" in result.output or "needs triton" in result.output


def test_kernels_as_a_repository(tmp_path):
    pytest.importorskip("triton", reason="triton is not installed")
    assert invoke("build-kernels", "--hub", str(tmp_path)).exit_code == 0
    assert (tmp_path / "build" / "torch-cuda" / "metadata.json").is_file()
    assert (tmp_path / "build" / "torch-rocm" / "forward.py").is_file()


def test_doctor_names_the_level(cxx):
    result = invoke("doctor")
    assert result.exit_code == 0, result.output
    assert "C++ level" in result.output
    assert "brgemm fp32" in result.output


def test_bench_writes_a_table_json_and_a_picture(tmp_path: Path):
    json_file, picture = tmp_path / "out" / "bench.json", tmp_path / "out" / "bench.png"
    files = ["--out", str(json_file), "--plot", str(picture)]
    result = invoke("bench", "attention", *SMALL, "--rows", "standard", *files)
    assert result.exit_code == 0, result.output
    assert "wall ratio" in result.stdout
    assert "(quartiles)" in result.stdout
    run = json.loads(json_file.read_text())
    assert {c["setting"]["dtype"] for c in run["cells"]} == {"fp32", "bf16"}
    rows = run["cells"][0]["rows"]
    standard = [r for r in rows if r["name"].startswith("standard")]
    assert [r["backward"] for r in standard] == [False, True]
    assert all(r["wall"]["median"] == 1.0 for r in standard)
    assert all(r["milliseconds"] > 0 and r["gflops"] > 0 for r in rows)
    assert len({r["name"] for r in rows}) >= 5
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert run["cases"] == []


def test_bench_of_chosen_rows(monkeypatch):
    monkeypatch.setattr("antiphase.benchmarks.attention.LONG_LENGTHS", (48, 96))
    options = ["--rows", "packed, overhead,long", "--dtype", "bf16", "--no-backward"]
    result = invoke("bench", "attention", *SMALL, *options)
    assert result.exit_code == 0, result.output
    assert "in proportion to what is visible" in result.stdout
    run = json.loads(invoke("bench", "attention", *SMALL, *options, "--json").stdout)
    assert {case["rows"] for case in run["cases"]} == {"packed", "overhead"}
    assert [cell["setting"]["length"] for cell in run["cells"]] == [48, 96]
    assert "the same in fp32" in {row["name"] for row in run["cells"][0]["rows"]}


def test_bench_of_decoding_prints_json():
    options = ["--queries", "1", "--no-backward", "--dtype", "fp32", "--rows", "standard"]
    result = invoke("bench", "attention", *SMALL, *options)
    assert result.exit_code == 0, result.output
    assert "1 query rows" in result.output
    assert "forward + backward" not in result.output
    run = json.loads(invoke("bench", "attention", *SMALL, *options, "--json").stdout)
    assert not any(row["backward"] for row in run["cells"][0]["rows"])


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
        (["--rows", "paded"], "--rows: got 'paded', allowed are standard, padded"),
        (["--rows", "v2", "--plot", "p.png"], "--plot: draws the rows standard and long"),
    ],
)
def test_invalid_options_raise(options: list[str], message: str):
    result = invoke("bench", "attention", *SMALL, *options)
    assert result.exit_code == 2
    assert message in result.output


def test_build_kernels_without_a_compiler(tmp_path: Path, monkeypatch):
    for name, value in {"PATH": "", "CXX": "/nowhere/c++", "ANTIPHASE_CACHE": tmp_path}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(native, "_load", native._load.__wrapped__)
    result = invoke("build-kernels")
    assert result.exit_code == 2
    assert "the kernels cannot be used" in result.stderr
    assert "no C++ compiler" in result.stderr
    assert "Traceback" not in result.stderr


def test_generate_continues_a_prompt(tmp_path: Path):
    folder = save_model(tmp_path / "model")
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


@pytest.fixture
def progress_bars():
    """Let transformers show its bars, which other commands have turned off in this process."""
    from transformers.utils.logging import enable_progress_bar

    enable_progress_bar()


@pytest.mark.usefixtures("progress_bars")
def test_generate_says_what_is_missing(tmp_path: Path):
    from tests.models.tiny import model

    model("diff_v1").save_pretrained(tmp_path)
    small = save_model(tmp_path / "small", vocabulary=30)
    for arguments, message in {
        (str(tmp_path), "Hello"): "has no tokenizer that transformers can load",
        (str(tmp_path / ".."), "Hello"): "no config.json in it",
        (str(small), "hello"): "do not belong together",
        (str(small), ""): "prompt: is empty",
        (str(small), "A", "--max-new-tokens", "0"): "--max-new-tokens: got 0",
        (str(small), "A", "--top-p", "0"): "--top-p: got 0",
        (str(small), "A", "--temperature", "-1"): "--temperature: got -1",
    }.items():
        result = invoke("generate", *arguments)
        assert result.exit_code == 2
        assert message in result.stderr
        assert result.stderr.count("\n") == 1, result.stderr
        assert "Loading weights" not in result.stderr
        assert result.stdout == ""


def test_show_a_preset_and_a_saved_model(tmp_path: Path):
    result = invoke("show", "nano", "--every", "--context", "64")
    assert result.exit_code == 0, result.output
    assert "412,288" in result.output
    for name in ("low_rank_noise", "signed_mask", "300 (requested 344"):
        assert name in result.output
    folder = save_model(tmp_path / "model")
    result = invoke("show", str(folder))
    assert "diff_v1" in result.output
    assert "4 heads, 8 maps, 4 kv heads" in result.output
    assert "sink" in invoke("show", str(folder), "--attention", "sink").output


def test_show_says_why_a_mechanism_does_not_fit(tmp_path: Path):
    from antiphase.models import AntiphaseConfig

    shape = {"hidden_size": 96, "num_attention_heads": 3, "num_hidden_layers": 1, "vocab_size": 32}
    AntiphaseConfig(attention="standard", **shape).save_pretrained(tmp_path / "odd")
    result = invoke("show", str(tmp_path / "odd"), "--every", "--context", "8")
    assert result.exit_code == 0, result.output
    assert "diff_v1: does not fit this shape" in result.output
    found = json.loads(
        invoke("show", str(tmp_path / "odd"), "--every", "--context", "8", "--json").stdout
    )
    assert "diff_v1" in found["unfit"]
    assert "diff_v1" not in found["mechanisms"]
    assert found["mechanisms"]["standard"]["parameters"]["total"] > 0


@pytest.mark.slow
def test_show_every_mechanism_of_a_larger_preset():
    result = invoke("show", "small", "--every", "--attention", "grouped")
    assert result.exit_code == 0, result.output


def test_show_says_what_is_wrong(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    for arguments, message in {
        ("nano", "--attention", "nonsense"): "allowed are standard, diff_v1",
        ("nowhere",): "presets are nano",
        (str(tmp_path),): "is a 'llama' model",
        ("nano", "--context", "0"): "--context: got 0",
        ("nano", "--dtype", "int8"): "--dtype: got 'int8'",
    }.items():
        result = invoke("show", *arguments)
        assert result.exit_code == 2
        assert message in result.stderr


def test_show_generate_and_analyze_take_a_run_folder(tmp_path: Path):
    from antiphase.training import Recipe

    run = tmp_path / "run"
    save_model(run / "model")
    options = {"length": 16, "needles": 2, "keys": 4}
    (run / "recipe.yaml").write_text(Recipe(task_options=options).as_yaml())
    for arguments in (
        ["show", str(run), "--context", "8"],
        ["generate", str(run), "Hello", "--max-new-tokens", "2"],
    ):
        result = invoke(*arguments)
        assert result.exit_code == 0, result.output
    result = invoke("analyze", str(run), "--texts", "2", "--out", str(tmp_path / "a"), "--json")
    assert result.exit_code == 0, result.output  # --texts is the former name of --sequences
    found = json.loads(result.stdout)
    assert found[str(run)] == json.loads((tmp_path / "a" / "run" / "analysis.json").read_text())


@pytest.mark.usefixtures("progress_bars")
def test_import_weights_shows_no_bars_before_an_error(tmp_path: Path):
    from tests.models.tiny import model

    model("diff_v2").save_pretrained(tmp_path / "ours")
    result = invoke("import-weights", str(tmp_path / "ours"), str(tmp_path / "theirs"))
    assert result.exit_code == 2
    assert result.stderr.startswith("antiphase: attention: got 'diff_v2', but DiffLlama is always")
    assert not (tmp_path / "theirs").exists()


def test_import_weights_there_and_back(tmp_path: Path):
    save_model(tmp_path / "ours")
    result = invoke("import-weights", str(tmp_path / "ours"), str(tmp_path / "theirs"))
    assert result.exit_code == 0, result.output
    assert "DiffLlamaForCausalLM" in result.output
    result = invoke("import-weights", str(tmp_path / "theirs"), str(tmp_path / "back"))
    assert "AntiphaseForCausalLM" in result.output
    options = ["Hello", "--max-new-tokens", "9", "--temperature", "0"]
    generated = [
        invoke("generate", str(tmp_path / n), *options).stdout for n in ("ours", "theirs", "back")
    ]
    assert generated[0] == generated[1] == generated[2]


def test_bench_of_models_compares_equal_parameters(tmp_path: Path):
    file = tmp_path / "model.json"
    result = invoke(
        *("bench", "model", "--size", "nano", "--length", "32", "--new-tokens", "2"),
        *(
            "--context",
            "32",
            "--context",
            "16",
            "--rounds",
            "2",
            "--kv-heads",
            "2",
            "--out",
            str(file),
        ),
    )
    assert result.exit_code == 0, result.output
    run = json.loads(file.read_text())
    assert [comparison["title"] for comparison in run["comparisons"]] == [
        "training step, T = 32",
        "forward, T = 32",
        "decoding 2 tokens after 32",
        "decoding 2 tokens after 16",
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
    assert invoke("bench", "model", "--workload", "sleeping").exit_code == 2
    assert "--size: got 'huge'" in invoke("bench", "model", "--size", "huge").stderr


TINY = ["--set", "model={hidden_size: 32, num_hidden_layers: 1}", "--set", "batch_size=8"]
TINY += ["--set", "task_options={length: 16, needles: 2, keys: 4}", "--set", "evaluate_every=10"]
TINY += ["--set", "evaluate_examples=32"]


def test_train_compare_and_resume(tmp_path: Path):
    folders = []
    for attention, seed in (("standard", "0"), ("standard", "1"), ("diff_v1", "0")):
        folder = tmp_path / f"{attention}-{seed}"
        done = invoke(
            *("train", "--task", "needle", "--attention", attention, "--seed", seed),
            *("--steps", "20", "--out", str(folder), *TINY),
        )
        assert done.exit_code == 0, done.output
        folders.append(str(folder))
    assert "wrote" in invoke("train", "--resume", folders[0]).output
    assert invoke("train", "--resume", folders[0], "--quiet").stdout == f"{folders[0]}\n"
    resumed = json.loads(invoke("train", "--resume", folders[0], "--json").stdout)
    assert resumed["run"] == folders[0]
    assert resumed["scores"]["loss"] > 0
    again = invoke("train", "--task", "needle", "--out", folders[0], *TINY)
    assert "overwrite with --force" in again.stderr
    picture = tmp_path / "curves.png"
    result = invoke("compare", *folders, "--plot", str(picture))
    assert result.exit_code == 0, result.output
    assert "±" in result.output  # two seeds of standard
    assert picture.read_bytes().startswith(b"\x89PNG")
    groups = json.loads(invoke("compare", *folders, "--json").stdout)
    assert [len(group["seeds"]) for group in groups] == [2, 1]
    assert groups[0]["scores"]["loss"]["mean"] > 0
    assert groups[1]["scores"]["loss"]["low"] is None  # one seed has no interval
    narrow = invoke("compare", *folders, env={"COLUMNS": "80"})
    assert max(map(len, narrow.stdout.splitlines())) <= 80
    assert "…" not in narrow.stdout
    mixed = invoke("compare", folders[0], str(tmp_path))
    assert mixed.exit_code == 0
    assert "is no run (no recipe.yaml in it); left out" in mixed.output
    assert "no finished run among" in invoke("compare", str(tmp_path)).output
    assert "would count twice" in invoke("compare", folders[0], folders[0]).stderr
    assert invoke("compare", folders[0], "--plot", str(tmp_path / "x")).exit_code == 2
    assert invoke("train", "--resume", folders[0], "--steps", "9").exit_code == 2


def test_train_says_what_is_missing():
    assert "needle-nano" in invoke("train", "--list").output
    assert invoke("train").exit_code == 2
    assert "no built-in" in invoke("train", "nonsense").stderr


def test_a_run_that_stops_early_exits_with_130(tmp_path: Path, monkeypatch):
    from antiphase.training import run
    from antiphase.training.stopping import StoppedError

    def stop(*args, **kwargs):
        raise StoppedError(3, 9, "resume with --resume")

    monkeypatch.setattr(run, "train", stop)
    result = invoke("train", "--task", "needle", "--out", str(tmp_path / "run"))
    assert result.exit_code == 130
    assert result.stderr == "antiphase: stopped at step 3 of 9; resume with --resume\n"


def test_task_shows_examples():
    result = invoke("task", "needle", "--show", "2", "--set", "needles=2", "--set", "noise=0.9")
    assert result.exit_code == 0, result.output
    assert result.output.count("<bos>") == 2
    assert "haystack" in result.output
    assert "allowed are needle" in invoke("task", "hay").stderr
    quiet = invoke("task", "needle", "--show", "2", "--quiet")
    assert [line.split()[0] for line in quiet.stdout.splitlines()] == ["<bos>", "<bos>"]
    found = json.loads(invoke("task", "needle", "--show", "2", "--json").stdout)
    assert [len(example["tokens"]) for example in found["examples"]] == [64, 64]
    assert found["examples"][0]["roles"][-1] == "target"
    assert "use --show" in invoke("task", "needle", "--set", "size=3").stderr
    assert "give the name of a task" in invoke("task").stderr


def test_bench_of_training_compares_the_same_steps():
    result = invoke("bench", "training", "--steps", "2", *TINY)
    assert result.exit_code == 0, result.output
    assert "run / bare loop, wall" in result.output
    assert invoke("bench", "training", "--steps", "0").exit_code == 2
    found = json.loads(invoke("bench", "training", "--steps", "2", *TINY, "--json").stdout)
    assert found["costs"]["wall"]["median"] > 0
