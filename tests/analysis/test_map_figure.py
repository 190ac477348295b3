"""The front-page figure: maps of two models on one sequence."""

import pytest

from antiphase.analysis.map_figure import draw_map_figure


def test_it_draws_the_shipped_models(tmp_path):
    path = tmp_path / "new" / "maps.png"
    assert draw_map_figure(path) == path
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 50_000
    other = draw_map_figure(tmp_path / "other.png", differential="diff_v2", example=3, seed=1)
    assert other.read_bytes() != path.read_bytes()


def test_models_that_do_not_fit_raise(tmp_path):
    with pytest.raises(ValueError, match="differential: got standard, which has no noise map"):
        draw_map_figure(tmp_path / "x.png", differential="standard")
    with pytest.raises(ValueError, match="standard: got diff_v2, which has two maps"):
        draw_map_figure(tmp_path / "x.png", standard="diff_v2")
    with pytest.raises(ValueError, match="nowhere: "):
        draw_map_figure(tmp_path / "x.png", differential="./nowhere")
    assert not list(tmp_path.iterdir())
