"""Where attention goes on one sequence: measured, stored, drawn without the models."""

import struct
from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console

from antiphase.experiments.arms import STANDARD, V1, V2
from antiphase.experiments.attention_example import AttentionExample, attention_example
from antiphase.experiments.conditions import STRESS
from antiphase.experiments.registry import EXPERIMENTS
from antiphase.experiments.report import write_report
from antiphase.experiments.report.attention_picture import draw_attention, picture_caption
from antiphase.experiments.report.interactive import plotly_map
from antiphase.experiments.report.static import thinned
from antiphase.experiments.results import Study, load_study
from antiphase.experiments.study import run_study
from antiphase.experiments.trained_models import TrainedModel, TrainedModels
from antiphase.models import AntiphaseForCausalLM
from antiphase.training.components import dataset, model_config
from tests.experiments.small import SMALL, InProcess, few_examples, small_run  # noqa: F401


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Models of three arms as they are initialised."""
    found = {}
    for arm in (STANDARD, V1, V2):
        run = small_run(arm)
        folder = tmp_path_factory.mktemp("runs") / arm.attention
        torch.manual_seed(0)
        config = model_config(run.recipe, dataset(run.recipe, "train", 4))
        AntiphaseForCausalLM(config).save_pretrained(folder / "model")
        found[arm.name] = [TrainedModel(arm.name, run, folder)]
    return TrainedModels(found)


@pytest.fixture(scope="module")
def example(models):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("antiphase.experiments.model_measurements.SEQUENCES", 4)
        return attention_example(models)


def test_the_example_knows_answer_query_and_rows(models, example):
    data = models[V1][0].held_out(64, condition=STRESS)
    batch = data.examples([example.sequence])
    words = [data.id_to_token[token] for token in batch.tokens[0]]
    assert [*example.tokens, example.target] == words
    assert [words[i] for i in example.answer] == [*words[-3:-1], example.target]  # key and value
    assert [words[i] for i in example.query] == words[-3:-1]
    assert 0.3 <= example.answer[0] / (len(words) - 2) <= 0.7
    assert [row.arm for row in example.rows] == ["standard", "V1", "V2"]
    for row in example.rows:
        assert sum(row.signal) == pytest.approx(1, abs=0.01)
        noise = row.noise or [0.0] * len(row.signal)
        assert np.allclose(row.difference, np.subtract(row.signal, noise), atol=2e-4)
        assert 0 < row.on_answer < 1
        assert row.on_answer + row.on_others <= 1


def test_maps_of_a_few_heads_are_kept(example):
    assert [(m.arm, m.name) for m in example.maps] == [
        *[("standard", "A")] * 2,
        *[("V1", name) for name in ("A1", "A2", "A1 - lam A2")] * 2,
    ]
    assert example.maps[0].retrieves
    for m in example.maps[:4]:
        rows = np.nansum(m.weights, axis=1)
        assert np.isnan(m.weights[0, 1:]).all()
        assert np.allclose(rows, 1 - m.lam if m.name == "A1 - lam A2" else 1, atol=0.02)
    title = example.title(example.maps[2])
    assert title.startswith("V1: A1, layer ")
    assert title.endswith(f", sequence {example.sequence}")


def test_the_first_sequence_is_chosen_without_the_models(models, example):
    other = attention_example(TrainedModels({"V2": models[V2]}))
    assert (other.tokens, other.sequence) == (example.tokens, example.sequence)
    assert other.maps == []
    assert attention_example(TrainedModels({})) is None


def test_the_report_is_drawn_without_the_models(example, tmp_path):
    study = Study([], [], [], {}, {}, "quick", [0], attention=example)
    study.save(tmp_path)
    kept = load_study(tmp_path)
    assert kept.attention == example
    assert AttentionExample.from_dict(example.as_dict()) == example
    write_report(kept, tmp_path)
    text, page = ((tmp_path / name).read_text() for name in ("report.md", "report.html"))
    page = page.split("</script>", 1)[1]
    assert "![Where attention goes on one sequence](attention.png)" in text
    assert text.count("](figures/map-") == 4  # one per head
    assert all(p.stat().st_size > 10_000 for p in (tmp_path / "figures").glob("map-*.png"))
    assert page.count("data:image/png;base64,") == 2
    assert page.count("Plotly.newPlot") == len(example.maps)
    assert picture_caption(example) in text
    assert example.source in page


def size_of(path):
    return struct.unpack(">II", path.read_bytes()[16:24])


def test_the_picture_has_a_form_for_phones(example, tmp_path):
    draw_attention(example, tmp_path / "wide.png")
    draw_attention(example, tmp_path / "narrow.png", narrow=True)
    wide, narrow = size_of(tmp_path / "wide.png"), size_of(tmp_path / "narrow.png")
    assert wide[0] > wide[1]
    assert narrow[0] < narrow[1]
    longer = replace(  # too long for a label of every token
        example,
        tokens=["f0"] * 200 + example.tokens,
        answer=[200 + i for i in example.answer],
        query=[200 + i for i in example.query],
        rows=[
            replace(
                row,
                signal=[0.0] * 200 + row.signal,
                noise=row.noise and [0.0] * 200 + row.noise,
                difference=[0.0] * 200 + row.difference,
            )
            for row in example.rows
        ],
    )
    draw_attention(longer, tmp_path / "longer.png")
    assert size_of(tmp_path / "longer.png")[0] == wide[0]


def test_a_map_has_tokens_on_its_axes_and_zero_is_white(example):
    drawn = plotly_map(example.maps[0], example)
    heat, places = drawn.data[0], thinned(example)
    assert list(drawn.layout.xaxis.ticktext) == [example.tokens[i] for i in places]
    assert heat.zmin == -heat.zmax
    assert heat.colorscale[1][1] == "#FFFFFF"
    assert example.query[-1] in places
    assert example.answer[-1] in places


def test_a_study_keeps_its_example(few_examples, tmp_path):  # noqa: F811
    plan, quiet = replace(SMALL, seeds=(0,)), Console(quiet=True)
    study = run_study(plan, [EXPERIMENTS[7]], tmp_path, quiet, engine=InProcess())
    assert [row.arm for row in study.attention.rows] == ["standard", "V1", "V2"]
    stored = tmp_path / "measured" / "attention.json"
    stamp = stored.stat().st_mtime_ns
    again = run_study(plan, [EXPERIMENTS[15]], tmp_path, quiet, engine=InProcess())  # no standard
    assert again.attention == study.attention
    assert stored.stat().st_mtime_ns == stamp
