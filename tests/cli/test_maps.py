"""`antiphase maps` hands its options to the figure; the figure itself is tested in analysis."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.cli.runner import invoke

MODULE = "antiphase.analysis.map_figure"


@pytest.fixture
def calls(monkeypatch) -> list[tuple[Path, dict]]:
    found: list[tuple[Path, dict]] = []

    def draw_map_figure(path: Path, **options: object) -> Path:
        found.append((path, options))
        return path

    figure = ModuleType(MODULE)
    figure.draw_map_figure = draw_map_figure
    monkeypatch.setitem(sys.modules, MODULE, figure)
    return found


def test_the_options_reach_the_figure(calls, tmp_path):
    out = tmp_path / "new" / "maps.png"
    result = invoke("maps", "--out", str(out), "--differential", "diff_v2", "--example", "3")
    assert result.exit_code == 0, result.output
    options = {"standard": "standard", "differential": "diff_v2", "example": 3, "seed": 0}
    assert calls == [(out, options)]
    assert result.stdout == f"wrote {out}\n"
    assert invoke("maps", "--out", str(out), "--quiet").stdout == f"{out}\n"


def test_the_figure_is_drawn(tmp_path):
    pytest.importorskip(MODULE, reason=f"{MODULE} is not part of this version yet")
    out = tmp_path / "maps.png"
    result = invoke("maps", "--out", str(out))
    assert result.exit_code == 0, result.output
    assert out.read_bytes().startswith(b"\x89PNG")
