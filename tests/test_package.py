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


def test_ops_import_nothing_above_them():
    for path in (ROOT / "antiphase" / "ops").rglob("*.py"):
        for line in path.read_text().splitlines():
            if re.match(r"\s*(from|import) antiphase\b", line):
                assert re.match(r"\s*(from|import) antiphase\.ops\b", line), f"{path}: {line}"


def test_readme_code_runs():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})
