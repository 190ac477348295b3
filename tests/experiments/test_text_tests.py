"""The tests on models of text: what they measure, and a study of them from nothing to its page."""

import io
import json
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from antiphase.experiments import text_measurements
from antiphase.experiments.arms import STANDARD, V1, V2, Settings, TrainingRun, arm_recipe
from antiphase.experiments.e20_ladder import loss_gain, recall_gain
from antiphase.experiments.e21_start import started
from antiphase.experiments.e22_head_count import PAIRS
from antiphase.experiments.plans import LADDER_MICRO, LADDER_NANO, Plan
from antiphase.experiments.records import Records
from antiphase.experiments.registry import EXPERIMENTS
from antiphase.experiments.report import write_report
from antiphase.experiments.results import load_study
from antiphase.experiments.study import run_study
from antiphase.experiments.trained_models import TrainedModel
from antiphase.explorer.save import save_study_page
from antiphase.training import Recipe, load_recipe
from tests.experiments.small import InProcess

MINIMAL = {"recipe.yaml": "", "model/config.json": ""}
WORDS = "the river runs past a mill and the mill grinds corn for those who live by the river"


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    rng = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("text")
    for i in range(300):
        (folder / f"{i}.txt").write_text(" ".join(rng.choice(WORDS.split(), 100)))
    return str(folder)


@pytest.fixture(scope="module")
def plan(text):
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
    return Plan("small text", recipe, (11, 19, 20, 21), (0, 1))


def run_small(plan, folder, records=None, engine=None):
    patch = pytest.MonkeyPatch()
    patch.setattr(text_measurements, "FEW", 3)
    patch.setattr(text_measurements.text_losses, "__defaults__", (8,), raising=False)
    tests, console = [EXPERIMENTS[n] for n in plan.tests], Console(file=io.StringIO())
    try:
        found = run_study(
            plan, tests, folder, console, engine=engine or InProcess(), records=records
        )
    finally:
        patch.undo()
    found.save(folder)
    return found, console.file.getvalue()


@pytest.fixture(scope="module")
def study(plan, tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    return run_small(plan, folder)[0], folder


def test_a_study_continues_on_another_machine_from_records(plan, tmp_path):
    """Two seeds on two machines, without the weights of the first, give the report of one."""
    records, both = tmp_path / "runs.jsonl", replace(plan, tests=(19, 20))
    _, said = run_small(replace(both, seeds=plan.seeds[:1]), tmp_path / "first", records)
    assert "finished runs taken" not in said
    lines = records.read_text().splitlines()
    assert len(lines) == 3
    assert max(map(len, lines)) < 20_000
    found, said = run_small(both, tmp_path / "second", records)
    assert "3 finished runs taken from" in said
    assert "6 runs, 3 of them to train" in said
    assert not [*(tmp_path / "second").glob("trained/*-0-*/model/*.safetensors")]
    undisturbed, _ = run_small(both, tmp_path / "third")
    assert found.results == undisturbed.results
    assert found.training == undisturbed.training
    write_report(found, tmp_path / "second")
    assert save_study_page(tmp_path / "second") is None  # it has no weights of the first seed
    # and nothing is recorded twice
    assert len(records.read_text().splitlines()) == 6
    run_small(both, tmp_path / "second", records)
    assert len(records.read_text().splitlines()) == 6


def test_a_run_is_recorded_before_the_others_of_its_seed(plan, tmp_path):
    """Stopped after two of three runs, a study continues without the weights of these two."""

    class Stopped(InProcess):
        def perform(self, job, root):
            if job.recipe.attention == "diff_v2":
                raise KeyboardInterrupt
            return super().perform(job, root)

    records, one = tmp_path / "runs.jsonl", replace(plan, seeds=plan.seeds[:1], tests=(19, 20))
    with pytest.raises(KeyboardInterrupt):
        run_small(one, tmp_path / "first", records, Stopped())
    kept = [json.loads(line) for line in records.read_text().splitlines()]
    assert sorted(line["key"].split("-")[1] for line in kept) == ["diff_v1", "standard"]
    found, said = run_small(one, tmp_path / "second", records)
    assert "2 finished runs taken from" in said
    assert "3 runs, 1 of them to train" in said
    undisturbed, _ = run_small(one, tmp_path / "third")
    assert found.results == undisturbed.results
    assert found.training == undisturbed.training


@pytest.mark.parametrize("number", [11, 19, 20, 21, 22])
def test_tests_of_text_are_measured_model_by_model(number):
    assert EXPERIMENTS[number].load().by_model


def test_a_run_alone_is_measured_as_in_its_study(plan, study, tmp_path):
    """The same values by the same names."""
    _, folder = study
    records = tmp_path / "runs.jsonl"
    run_small(plan, tmp_path / "recorded", records)
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    assert len(lines) == 2 * 8
    for line in lines:
        want = json.loads((folder / "trained" / line["key"] / "measured.json").read_text())
        assert json.loads(line["files"]["measured.json"]) == want


def test_a_recorded_run_that_a_test_has_not_measured_is_trained_again(plan, tmp_path):
    """Its weights are not kept; afterwards the file has what both tests measured."""
    records, one = tmp_path / "runs.jsonl", replace(plan, seeds=plan.seeds[:1])
    run_small(replace(one, tests=(19,)), tmp_path / "first", records)
    assert len(records.read_text().splitlines()) == 3
    _, said = run_small(replace(one, tests=(20,)), tmp_path / "second", records)
    assert "3 runs, 3 of them to train" in said
    assert len(records.read_text().splitlines()) == 6
    _, said = run_small(replace(one, tests=(19, 20)), tmp_path / "third", records)
    assert "3 finished runs taken from" in said
    assert "3 runs, 0 of them to train" in said


def test_a_recorded_run_taken_for_some_tests_is_trained_again_for_more(plan, tmp_path):
    """A part of a study, then the whole: runs without weights cannot be measured for the rest."""
    records, one = tmp_path / "runs.jsonl", replace(plan, seeds=plan.seeds[:1])
    run_small(replace(one, tests=(19,)), tmp_path / "first", records)
    second = tmp_path / "second"
    _, said = run_small(replace(one, tests=(19,)), second, records)
    assert "3 finished runs taken from" in said
    found, said = run_small(replace(one, tests=(19, 20)), second, records)
    assert "3 runs, 3 of them to train" in said
    undisturbed, _ = run_small(replace(one, tests=(19, 20)), tmp_path / "third")
    assert found.results == undisturbed.results


def test_runs_begin_seed_by_seed(plan, tmp_path):
    """A seed is recorded when it is complete; the longest run of each comes first."""
    began = []

    class Listed(InProcess):
        def submit(self, job, root):
            began.append((job.recipe.seed, -job.cost))
            super().submit(job, root)

    run_small(replace(plan, tests=(19,)), tmp_path, None, Listed())
    seeds = [seed for seed, _ in began if seed in plan.seeds]
    assert seeds == sorted(seeds, key=plan.seeds.index)
    assert len(seeds) == 3 * len(plan.seeds)
    by_cost = [job for job in began if job[0] in plan.seeds]
    assert by_cost == sorted(by_cost)


def test_a_model_without_weights_says_so(study, plan, tmp_path):
    _, folder = study
    recipe = arm_recipe(plan.recipe, STANDARD, Settings(plan.recipe.lr)).changed(seed=0)
    run = TrainingRun(recipe).folder(folder / "trained")
    records = Records(tmp_path / "runs.jsonl", tmp_path / "trained")
    records.add(run)
    began = (run / "recipe.yaml").stat().st_mtime
    complete = records.path.read_text()
    records.path.write_text(complete + complete[:100])  # killed while it wrote another
    assert Records(records.path, records.root).restore() == 1
    assert records.path.read_text() == complete
    restored = tmp_path / "trained" / run.name
    (restored / "recipe.yaml").unlink()  # killed while it was written; then, with half of it there
    (restored / "environment.json").unlink()
    assert Records(records.path, records.root).restore() == 1
    assert (restored / "environment.json").is_file()
    assert (restored / "recipe.yaml").stat().st_mtime == began  # what a lock is compared with
    model = TrainedModel("standard", TrainingRun(recipe), restored)
    assert model.run.finished(tmp_path / "trained")
    with pytest.raises(FileNotFoundError, match="has no weights"):
        model.load()


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        json.dumps({"key": "../up", "began": 1.0, "milestones": [], "files": {}}),
        json.dumps({"key": "a", "began": 1.0, "milestones": [], "files": {"../x": "text"}}),
        json.dumps({"key": "a", "began": 1.0, "milestones": ["../x"], "files": MINIMAL}),
    ],
)
def test_a_damaged_record_is_named(line, tmp_path):
    path = tmp_path / "runs.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(ValueError, match=r"runs\.jsonl, line 1: is not the record of a run"):
        Records(path, tmp_path / "trained").restore()
    assert not (tmp_path / "trained").exists()


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
    minus_standard = {row[0]: row[2] for row in result.tables[0].rows}
    assert minus_standard.pop(STANDARD.name) == ""
    for arm in (V1, V2):
        gain = result.effects[loss_gain(arm)]
        assert gain.mean == pytest.approx(losses[STANDARD.name] - losses[arm.name], abs=1e-9)
        assert minus_standard[arm.name].mean == pytest.approx(-gain.mean, abs=1e-9)
    parts = {row[0]: [cell.mean for cell in row[3:]] for row in result.tables[0].rows}
    hits, rest, fraction = parts[V1.name]
    assert losses[V1.name] == pytest.approx(fraction * hits + (1 - fraction) * rest, abs=0.02)
    standard_hits, standard_rest, _ = parts[STANDARD.name]
    expected = (standard_hits - hits) - (standard_rest - rest)
    assert result.effects[recall_gain(V1)].mean == pytest.approx(expected, abs=1e-9)
    lead = result.figures[1].series[V1.name]
    assert [tokens for tokens, _ in lead] == [3 * 4 * 64, 6 * 4 * 64]


def test_arms_differ_in_what_their_names_say():
    settings = Settings(1e-3, 2.0)
    published = arm_recipe(LADDER_NANO.recipe, started(V1, "published start"), settings)
    assert published.model == {"initialisation": "published", "scale_embedding": False}
    narrow = arm_recipe(LADDER_NANO.recipe, V1, settings)
    assert narrow.model == {"query_key_std": 0.02, "scale_embedding": True, "branch_scale": 2.0}
    for heads, (v1, standard) in PAIRS.items():
        for arm in (v1, standard):
            recipe = arm_recipe(LADDER_MICRO.recipe, arm, settings)
            assert recipe.model["branch_scale"] == 2.0
            assert recipe.model.get("num_attention_heads", 8) == 2 * heads
    own = {arm.name: PAIRS[4][i].name for pair in PAIRS.values() for i, arm in enumerate(pair)}
    assert LADDER_MICRO.grid.shared == {a: b for a, b in own.items() if a != b}


def test_published_arms_are_tuned_once_per_rate():
    """The published start has no branch scale, so all scales of the grid are the same run."""
    arm = started(V2, "published start")
    keys = {
        TrainingRun(arm_recipe(LADDER_NANO.recipe, arm, Settings(1e-3, scale))).key
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
