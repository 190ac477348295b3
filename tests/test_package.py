"""The package as a whole: a light import, its public names, and the README's code."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import antiphase

ROOT = Path(__file__).parents[1]


def test_import_loads_nothing_heavy():
    code = "import sys, antiphase; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    heavy = {"torch", "numpy", "transformers", "typer", "rich", "antiphase.ops"}
    assert not heavy & set(loaded)


def test_public_names_resolve():
    assert {"diff_attention", "attention_maps", "backend_for"} <= set(dir(antiphase))
    for name in antiphase.__all__:
        assert getattr(antiphase, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = antiphase.nonsense


def test_lower_layers_do_not_import_upper_ones():
    order = ["ops", "attention", "models", "tasks", "training", "evaluation", "lab"]
    for position, layer in enumerate(order):
        for path in (ROOT / "antiphase" / layer).rglob("*.py"):
            imported = set(re.findall(r"(?:from|import) antiphase\.(\w+)", path.read_text()))
            assert not imported & set(order[position + 1 :]), path


def test_readme_code_runs():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})
