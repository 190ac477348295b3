"""The package: a light import, public names, imports that go one way, and pages whose code runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import antiphase

ROOT = Path(__file__).parents[1]


def test_import_loads_nothing_heavy():
    code = "import sys, antiphase.attention as a; list(a.MECHANISMS); print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    heavy = {"torch", "triton", "numpy", "transformers", "typer", "rich", "antiphase.ops"}
    assert not heavy & set(loaded)


def test_triton_kernels_are_imported_only_when_used():
    """PyTorch's FLOP counter imports the package `triton` itself; ours are not compiled for it."""
    code = (
        "import sys, torch, antiphase; from antiphase import backend_for, diff_attention; "
        "q = torch.randn(1, 2, 3, 8); diff_attention(q, q, q, q, q, 0.5); "
        "backend_for(q, q, q, q, q, 0.5); print('antiphase.ops.triton.kernels' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == "False"


def test_public_names_resolve():
    assert {"diff_attention", "attention_maps", "backend_for"} <= set(dir(antiphase))
    for name in antiphase.__all__:
        assert getattr(antiphase, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = antiphase.nonsense


SHARED = [  # import no room
    "allocator",
    "registrations",
    "cache_folder",
    "cpu",
    "isolated_process",
    "json_values",
    "lazy_imports",
    "markdown",
    "options",
    "package_downloads",
]
ROOMS = [
    "ops",
    "attention",
    "models",
    "tasks",
    "pretrained",
    "evaluation",
    "training",
    "analysis",
    "experiments",
    "explorer",
    "benchmarks",
    "cli",
]


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_nothing_above_it(room):
    below = "|".join(["__version__", *SHARED, *ROOMS[: ROOMS.index(room) + 1]])
    for path in (ROOT / "antiphase" / room).rglob("*.py"):
        for line in path.read_text().splitlines():
            if re.match(r"\s*(from|import) antiphase\b", line):
                found = re.match(rf"\s*(from|import) antiphase(\.| import )({below})\b", line)
                assert found, (path, line)


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/attention.md",
        "docs/explorer.md",
        "docs/lab.md",
        "docs/models.md",
        "docs/pretrained.md",
        "docs/serving.md",
        "docs/tools.md",
        "docs/training.md",
    ],
)
def test_the_code_of_a_page_runs(page):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, page, "exec"), {"__name__": page})
