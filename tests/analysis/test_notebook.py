"""Figures for a notebook: their weights are those of the maps, and tokens are text."""

import pytest
import torch

from antiphase.analysis import capture, show
from antiphase.analysis.notebook import _colours
from antiphase.models import AntiphaseForCausalLM
from antiphase.models.locate import shipped_models
from tests.cli.runner import save_model

pytest.importorskip("plotly")

TEXT = "<bos> f3 key2 val7 f1 decoy5 val1 f4 f0 f9 key1 val3 f2 f8 f7 f6 f5 f11 key2"


def flat(z):
    return [w for line in z for w in line if w is not None]


def test_both_figures_hold_the_weights_of_the_maps():
    shown = show("diff_v1", TEXT, layer=1, head=2)
    model = AntiphaseForCausalLM.from_pretrained(shipped_models()["diff_v1"]).eval()
    names = ["<pad>", "<bos>", *(f"f{i}" for i in range(16)), *(f"key{i}" for i in range(16))]
    names += [f"val{i}" for i in range(16)] + [f"decoy{i}" for i in range(16)]
    ids = torch.tensor([[names.index(token) for token in TEXT.split()]])
    m = capture(model, ids, "all").layers[1]
    T = ids.shape[1]
    expected = [m.signal, m.noise, m.lam * m.noise, m.difference]
    for trace, A in zip(shown.map.data, expected, strict=True):
        for i in (0, 7, T - 1):
            assert flat([trace.z[i]]) == pytest.approx(A[0, 2, i, : i + 1].tolist(), abs=1e-4)
    assert [step["label"] for step in shown.map.layout.updatemenus[0].buttons] == [
        f"layer {i}, head {j}" for i in range(2) for j in range(4)
    ]
    other = shown.map.layout.updatemenus[0].buttons[0].args[0]["z"][0]
    first = capture(model, ids, "all").layers[0].signal[0, 0, T - 1]
    assert flat([other[-1]]) == pytest.approx(first.tolist(), abs=1e-4)
    rows = shown.sequence.layout.sliders[0].steps
    assert len(rows) == T
    for row in (3, T - 1):
        for z, A in zip(rows[row].args[0]["z"], (expected[0], *expected[2:]), strict=True):
            assert flat(z) == pytest.approx(A[0, 2, row, : row + 1].tolist(), abs=1e-4)


def test_one_map_per_head_has_one_map():
    shown = show("standard", TEXT)
    assert len(shown.map.data) == len(shown.sequence.data) == 1
    assert "&lt;bos>" in shown.sequence.data[0].text[0][0], "plotly would read <bos> as markup"


def test_colours_are_white_at_zero():
    found = dict(map(tuple, _colours()))
    assert (found[0.5], found[0.0], found[1.0]) == (
        "rgb(255,255,255)",
        "rgb(213,94,0)",
        "rgb(0,114,178)",
    )


def test_a_loaded_model_with_the_tokenizer_beside_it(tmp_path):
    folder = save_model(tmp_path / "letters")
    model = AntiphaseForCausalLM.from_pretrained(folder).eval()
    shown = show(model, "ABCABC")
    assert list(shown.sequence.data[0].text[0]) == list("ABCABC")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("diff_v1", "<bos> nonsense"), "'nonsense' is no token"),
        (("diff_v1", "<bos>"), "expected 2 to 256"),
        (("diff_v1", "f1 " * 300), "has 300 tokens"),
        (("no-such-model/x/y", "a"), "no such folder"),
    ],
)
def test_wrong_arguments_say_what_is_allowed(arguments, says):
    with pytest.raises(ValueError, match=says):
        show(*arguments)
    for place, names in ({"layer": 2}, "layers 0 to 1"), ({"head": 4}, "heads 0 to 3"):
        with pytest.raises(ValueError, match=names):
            show("diff_v1", TEXT, **place)


def test_a_notebook_shows_both(monkeypatch):
    shown = show("diff_v1", TEXT)
    drawn = []
    monkeypatch.setattr(type(shown.map), "show", lambda figure: drawn.append(figure))
    shown._ipython_display_()
    assert drawn == [shown.sequence, shown.map]
