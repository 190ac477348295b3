"""The tests on models of text: what they measure, and a study of them from nothing to its page."""

import numpy as np
import pytest
from rich.console import Console

from antiphase.experiments import text_measurements
from antiphase.experiments.arms import STANDARD, V1, V2, Settings, TrainingRun, arm_recipe
from antiphase.experiments.e20_ladder import loss_gain, recall_gain
from antiphase.experiments.e21_start import PUBLISHED
from antiphase.experiments.e22_head_count import PAIRS
from antiphase.experiments.plans import LADDER_MICRO, LADDER_NANO, Plan
from antiphase.experiments.registry import EXPERIMENTS
from antiphase.experiments.report import write_report
from antiphase.experiments.results import load_study
from antiphase.experiments.study import run_study
from antiphase.experiments.trained_models import TrainedModel
from antiphase.training import Recipe, load_recipe
from tests.experiments.small import InProcess

WORDS = "the river runs past a mill and the mill grinds corn for those who live by the river"


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    rng = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("text")
    for i in range(300):
        (folder / f"{i}.txt").write_text(" ".join(rng.choice(WORDS.split(), 100)))
    return str(folder)


@pytest.fixture(scope="module")
def study(text, tmp_path_factory):
    recipe = Recipe(
        task="language",
        task_options={"length": 64, "text": [text]},
        model={"hidden_size": 32, "num_attention_heads": 4},
        steps=6,
        batch_size=4,
        warmup=2,
        evaluate_every=3,
        evaluate_examples=8,
    )
    numbers = (11, 19, 20, 21)
    plan = Plan("small text", recipe, numbers, (0, 1))
    folder = tmp_path_factory.mktemp("study")
    patch = pytest.MonkeyPatch()
    patch.setattr(text_measurements, "FEW", 3)
    patch.setattr(text_measurements.text_losses, "__defaults__", (8,), raising=False)
    tests = [EXPERIMENTS[number] for number in numbers]
    found = run_study(plan, tests, folder, Console(quiet=True), engine=InProcess())
    patch.undo()
    return found, folder


def test_a_study_of_text_has_every_effect_and_a_page(study):
    found, folder = study
    by_number = {result.number: result for result in found.results}
    for number in (11, 19, 20, 21):
        result = by_number[number]
        assert not result.why_not, result.why_not
        assert result.tables
        assert result.figures
        result.judgements()
    assert not found.claims
    assert found.attention is None
    found.save(folder)
    write_report(load_study(folder), folder)
    page = (folder / "report.md").read_text()
    assert "Held-out loss" in page
    assert "**quality**" in page
    assert "**cancelling**" not in page  # nothing is predicted of it here


def test_gains_are_differences_of_the_losses_in_the_table(study):
    found, _ = study
    result = next(r for r in found.results if r.number == 20)
    losses = {row[0]: row[1].mean for row in result.tables[0].rows}
    for arm in (V1, V2):
        gain = result.effects[loss_gain(arm)]
        assert gain.mean == pytest.approx(losses[STANDARD.name] - losses[arm.name], abs=1e-9)
    rows = {row[0]: [cell.mean for cell in row[1:]] for row in result.tables[0].rows}
    total, hits, rest, fraction = rows[V1.name]
    assert total == pytest.approx(fraction * hits + (1 - fraction) * rest, abs=0.02)
    standard = rows[STANDARD.name]
    expected = (standard[1] - hits) - (standard[2] - rest)
    assert result.effects[recall_gain(V1)].mean == pytest.approx(expected, abs=1e-9)
    lead = result.figures[1].series[V1.name]
    assert [tokens for tokens, _ in lead] == [3 * 4 * 64, 6 * 4 * 64]


def test_arms_differ_in_what_their_names_say():
    settings = Settings(1e-3, 2.0)
    published = arm_recipe(LADDER_NANO.recipe, PUBLISHED["V1"], settings)
    assert published.model == {"initialisation": "published"}
    default = arm_recipe(LADDER_NANO.recipe, V1, settings)
    assert default.model == {"branch_scale": 2.0}
    for heads, (v1, standard) in PAIRS.items():
        for arm in (v1, standard):
            recipe = arm_recipe(LADDER_MICRO.recipe, arm, settings)
            assert recipe.model["branch_scale"] == 2.0
            assert recipe.model.get("num_attention_heads", 8) == 2 * heads


def test_published_arms_are_tuned_once_per_rate():
    """The published start has no branch scale, so all scales of the grid are the same run."""
    keys = {
        TrainingRun(arm_recipe(LADDER_NANO.recipe, PUBLISHED["V2"], Settings(1e-3, scale))).key
        for scale in (0.5, 1.0, 2.0)
    }
    assert len(keys) == 1


def test_losses_count_hits_and_the_rest(study):
    _, folder = study
    runs = [p for p in (folder / "trained").iterdir() if p.is_dir() and "standard-0" in p.name]
    run = TrainingRun(load_recipe(str(runs[0] / "recipe.yaml")))
    model = TrainedModel("standard", run, runs[0])
    found = text_measurements.text_losses(model, 4)
    assert found.loss.shape == found.hit.shape == (4, 63)
    assert 0 < found.hit.mean() < 1
    assert (found.loss > 0).all()
