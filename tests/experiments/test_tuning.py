"""Tuning with an engine that trains nothing: what is tried, what is chosen, what is repeated."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from antiphase.experiments.arms import STANDARD, TOP_K, V1, Arm, TrainingRun, arm_recipe
from antiphase.experiments.conditions import Condition
from antiphase.experiments.grids import SQUARE, FullLengthGrid, Grid, MeasuredGrid, SharedGrid
from antiphase.experiments.measured_values import MEASURED
from antiphase.experiments.model_measurements import validation_errors
from antiphase.experiments.records import Records
from antiphase.experiments.trained_models import TrainedModel
from antiphase.experiments.tuning import chosen_settings, tune, tuning_table
from antiphase.training import Recipe
from tests.experiments.small import RECIPE, InProcess, few_examples  # noqa: F401

Loss = Callable[[Recipe], float]


class FakeEngine(InProcess):
    """Writes what a run leaves behind, with a loss by its recipe; infinite if it diverges."""

    def __init__(self, loss: Loss = lambda recipe: 1.0) -> None:
        super().__init__()
        self.loss = loss
        self.trained: list[TrainingRun] = []

    def perform(self, job: Any, root: Path) -> str | None:
        self.trained.append(job)
        loss = self.loss(job.recipe)
        if math.isinf(loss):
            return "DivergenceError: step 3: the loss is nan"
        folder = job.folder(root)
        (folder / "model").mkdir(parents=True)
        (folder / "model" / "config.json").write_text("{}")
        (folder / "recipe.yaml").write_text("")
        lines = [{"step": 4, "held_out_loss": 9.0}, {"step": 8, "held_out_loss": loss}]
        (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
        return None


def bowl(rate: float, scale: float) -> Loss:
    """Return a loss with its minimum where lr and branch scale are 2^rate and 2^scale."""

    def loss(recipe: Recipe) -> float:
        at = math.log2(recipe.lr / 1e-3), math.log2(recipe.model["branch_scale"])
        return (at[0] - rate) ** 2 + 0.5 * (at[1] - scale) ** 2 + 0.1

    return loss


def tuned(folder: Path, engine: FakeEngine, *arms: Arm, **grid: Any):
    return tune(RECIPE, arms, Grid(**grid), folder, Console(quiet=True), engine)


@pytest.mark.parametrize("best", [(0, 0), (1, -1), (-1, 0)])
def test_the_lowest_loss_is_chosen(best, tmp_path):
    engine = FakeEngine(loss=bowl(*best))
    (found,) = tuned(tmp_path, engine, V1, extensions=0)
    assert set(found.losses) == set(SQUARE)
    assert found.best == best
    assert found.losses[best] == pytest.approx(0.1)  # that of the last evaluation
    settings = Grid().settings(found.best, {})
    assert (settings.lr, settings.branch_scale) == (1e-3 * 2.0 ** best[0], 2.0 ** best[1])


def test_runs_are_short_and_have_seeds_of_their_own(tmp_path):
    engine = FakeEngine()
    longer = Arm("longer", "diff_v1", changes={"steps": 80, "criterion": 0.9, "batch_size": 2})
    tuned(tmp_path, engine, V1, longer, steps=6, seeds=(900, 901), extensions=0)
    recipes = [run.recipe for run in engine.trained]
    assert len(recipes) == 9 * 2 * 2
    assert {r.batch_size for r in recipes} == {RECIPE.batch_size, 2}
    assert {r.seed for r in recipes} == {900, 901}
    assert {(r.steps, r.criterion, tuple(r.milestones)) for r in recipes} == {(6, None, ())}
    assert {r.attention for r in recipes} == {"diff_v1"}


def test_losses_are_means_over_seeds(tmp_path):
    engine = FakeEngine(loss=lambda recipe: float(recipe.seed - 899))
    (found,) = tuned(tmp_path, engine, V1, seeds=(900, 902), extensions=0)
    assert set(found.losses.values()) == {2.0}


def test_a_best_point_at_the_edge_extends_the_grid(tmp_path):
    engine = FakeEngine(loss=bowl(2, 0))
    (found,) = tuned(tmp_path, engine, V1)
    assert found.best == (2, 0)
    assert not found.beyond_edge()
    tried = {(2, 0)} | {(3, 0), (2, 1), (2, -1)}  # the first extension, and the second
    assert set(found.losses) == set(SQUARE) | tried
    far, middle = FakeEngine(loss=bowl(9, 0)), FakeEngine(loss=bowl(0, 0))
    (edge,) = tuned(tmp_path / "far", far, V1)
    assert edge.best == (3, 0)  # after two extensions
    (inside,) = tuned(tmp_path / "inside", middle, V1)
    assert set(inside.losses) == set(SQUARE)
    table = tuning_table([edge, inside], Grid())
    assert table.columns[:3] == ["arm", "chosen", "where"]
    # nothing was tried beyond the last point, nor beside it
    edges = "at the edge of the grid: lr and branch scale"
    assert table.rows[0][1:3] == ["lr 0.008, branch scale 1", edges]
    assert table.rows[1][1:3] == ["lr 0.001, branch scale 1", "inside the grid"]
    column = table.columns.index("lr 0.008, scale 1")
    assert (table.rows[0][column], table.rows[1][column]) == ("36.100", "")


def test_runs_of_full_length_choose_the_rate(tmp_path):
    """Short runs prefer lr 1e-3; after the study's length, 4e-3 is best for one arm, not both."""
    long = RECIPE.changed(steps=50)

    def loss(recipe: Recipe) -> float:
        if recipe.steps != 50:
            return bowl(0, 1)(recipe)
        assert recipe.seed == 901
        assert recipe.criterion is None
        return bowl(2 if recipe.attention == "standard" else 0, 1)(recipe)

    engine = FakeEngine(loss)
    grid = FullLengthGrid(steps=8, extensions=1, full_seeds=(901,))
    assert grid.all_seeds == (900, 901)
    assert (grid.runs(V1), grid.full_runs(V1)) == (9, 3)
    standard, v1 = tune(long, [STANDARD, V1], grid, tmp_path, Console(quiet=True), engine)
    assert list(standard.full) == [(-1, 1), (0, 1), (1, 1), (2, 1), (3, 1)]
    assert list(v1.full) == [(-1, 1), (0, 1), (1, 1)]
    assert (standard.best, v1.best) == ((2, 1), (0, 1))
    assert "lr" not in standard.edges(grid.untried(standard)) + v1.edges(grid.untried(v1))
    full = [run for run in engine.trained if run.recipe.steps == 50]
    assert len(full) == 8
    table = tuning_table([standard, v1], grid)
    assert "lr 0.004, branch scale 2" in str(table.rows[0][1])
    assert table.columns[3] == "at full length"
    assert "seed 901" in table.note


def test_rates_at_full_length_are_extended_a_few_times_only(tmp_path):
    def loss(recipe: Recipe) -> float:
        return -recipe.lr

    engine = FakeEngine(loss)
    grid = FullLengthGrid(extensions=0, full_seeds=(901,), full_extensions=1)
    (found,) = tune(RECIPE, [V1], grid, tmp_path, Console(quiet=True), engine)
    assert [rate for rate, _ in found.full] == [0, 1, 2, 3]
    assert "lr" in found.edges(grid.untried(found))


def test_an_arm_may_take_the_settings_of_another(tmp_path):
    engine = FakeEngine(bowl(1, 0))
    grid = SharedGrid(extensions=0, same_as={"V1": "standard", "absent": "missing"})
    found = tune(RECIPE, [STANDARD, V1], grid, tmp_path, Console(quiet=True), engine)
    assert [tuning.arm for tuning in found] == [STANDARD]
    assert (grid.runs(STANDARD), grid.runs(V1), len(engine.trained)) == (9, 0, 9)
    chosen = chosen_settings(found, grid)
    assert chosen == {"standard": grid.settings((1, 0), {}), "V1": grid.settings((1, 0), {})}
    assert "Not tuned: V1 that of standard" in tuning_table(found, grid).note


HARDER = Condition("harder", length=1.0, near=1.0)


def measured_grid(**changes: Any) -> MeasuredGrid:
    conditions = {RECIPE.task: HARDER}
    return MeasuredGrid(conditions=conditions, confirming_seeds=(902, 903), **changes)


def test_measured_errors_choose_and_the_best_points_are_confirmed(tmp_path, monkeypatch):
    """One seed prefers (1, 0); the mean of three prefers (0, 0); the loss as trained, neither."""

    def measured(model: Any, condition: Condition) -> Any:
        assert condition == HARDER
        recipe = model.run.recipe
        first = bowl(1, 0)(recipe)
        return np.array([first if recipe.seed == 900 else first + 3 * (recipe.lr > 1e-3)])

    measured.__qualname__ = "validation_errors"
    monkeypatch.setattr("antiphase.experiments.grids.validation_errors", measured)
    engine = FakeEngine(loss=bowl(-1, -1))
    grid = measured_grid(extensions=0)
    (found,) = tune(RECIPE, [V1], grid, tmp_path, Console(quiet=True), engine)
    assert min(found.losses, key=found.losses.__getitem__) == (1, 0)
    assert set(found.full) == {(1, 0), (1, 1), (1, -1)}  # the three best of the first seed
    assert found.full[1, 0] == pytest.approx(0.1 + 2)  # the mean of three seeds
    assert (grid.runs(V1), grid.full_runs(V1)) == (0, len(engine.trained)) == (0, 9 + 3 * 2)
    recipes = {
        (r.steps, r.criterion, tuple(r.milestones)) for r in (t.recipe for t in engine.trained)
    }
    assert recipes == {(RECIPE.steps, RECIPE.criterion, ())}  # trained as the study's runs
    wider = measured_grid(extensions=0, confirmed=9)
    (found,) = tune(RECIPE, [V1], wider, tmp_path, Console(quiet=True), engine)
    assert found.best == (0, 0)
    assert found.edges(wider.untried(found)) == []
    table = tuning_table([found], wider)
    assert table.title == "Errors of the tuning runs"
    assert table.columns[3] == "with all seeds"
    assert "harder" in table.note
    assert "902, 903" in table.note


@pytest.mark.usefixtures("few_examples")
def test_a_tuning_run_is_measured_before_it_is_recorded(tmp_path, monkeypatch):
    monkeypatch.setattr("antiphase.experiments.tuning.SQUARE", ((0, 0), (1, 0)))
    grid = measured_grid(extensions=0, confirmed=1)
    first, second, path = tmp_path / "first", tmp_path / "second", tmp_path / "runs.jsonl"
    console, records = Console(quiet=True), Records(path, first)
    keep = lambda run: records.add(run.folder(first))  # noqa: E731
    (found,) = tune(RECIPE, [V1], grid, first, console, InProcess(), keep)
    best = TrainingRun(grid.full_length(arm_recipe(RECIPE, V1, grid.settings(found.best, {}))))
    runs = [TrainingRun(best.recipe.changed(seed=seed)) for seed in grid.final_seeds]
    expected = [
        validation_errors(TrainedModel("V1", run, run.folder(first)), HARDER).mean() for run in runs
    ]
    assert found.full == {found.best: pytest.approx(np.mean(expected))}
    assert Records(path, second).restore() == 2 + 2
    assert all(MEASURED in json.loads(line)["files"] for line in path.read_text().splitlines())
    idle = FakeEngine()
    assert tune(RECIPE, [V1], grid, second, console, idle) == [found]
    assert idle.trained == []


def test_a_run_that_diverged_is_not_measured(tmp_path):
    engine = FakeEngine(loss=lambda recipe: math.inf)
    (found,) = tune(RECIPE, [V1], measured_grid(), tmp_path, Console(quiet=True), engine)
    assert {*found.losses.values(), *found.full.values()} == {math.inf}


def test_an_option_is_chosen_at_the_centre(tmp_path):
    wanted = {4: 0.2, 8: 0.5, 16: 0.9, 32: 0.9}
    engine = FakeEngine(loss=lambda r: wanted.get(r.attention_options.get("k"), 1.0))
    standard, top_k = tuned(tmp_path, engine, STANDARD, TOP_K, extensions=0)
    assert (standard.options, top_k.options) == ({}, {"k": 4})
    runs = [r.recipe for r in engine.trained if r.recipe.attention == "top_k"]
    away = [r for r in runs if r.attention_options["k"] != 4]
    assert [(r.lr, r.model["branch_scale"]) for r in away] == [(1e-3, 1.0)] * 3
    assert len(runs) == 9 + 3  # the centre is not trained again
    table = tuning_table([standard, top_k], Grid())
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert [row["swept option"] for row in rows] == [
        "",
        "k = 4: 0.200; k = 8: 0.500; k = 16: 0.900; k = 32: 0.900",
    ]
    assert rows[1]["chosen"].endswith("k=4")
    assert "k" not in standard.edges([])
    assert table.note.endswith("chosen first, at lr 0.001, branch scale 1.")


@pytest.mark.parametrize(("best", "edges"), [(4, ["k"]), (8, []), (16, []), (32, ["k"])])
def test_the_first_and_the_last_value_of_an_option_are_at_the_edge(best, edges, tmp_path):
    def loss(recipe: Recipe) -> float:
        return bowl(0, 0)(recipe) + (recipe.attention_options["k"] != best)

    (top_k,) = tuned(tmp_path, FakeEngine(loss=loss), TOP_K)
    assert (top_k.options, top_k.edges(Grid().untried(top_k))) == ({"k": best}, edges)


def test_a_run_that_diverged_has_an_infinite_loss(tmp_path):
    def loss(recipe: Recipe) -> float:
        return math.inf if recipe.lr > 1e-3 else bowl(1, 0)(recipe)

    (found,) = tuned(tmp_path, FakeEngine(loss=loss), V1, extensions=0)
    assert found.losses[1, 0] == math.inf
    assert found.best == (0, 0)
    # an option whose run diverged is not chosen
    options = FakeEngine(loss=lambda r: math.inf if r.attention_options["k"] > 4 else 1.0)
    (top_k,) = tuned(tmp_path, options, TOP_K, extensions=0)
    assert top_k.options == {"k": 4}
    table = tuning_table([found, top_k], Grid())
    assert table.rows[0][table.columns.index("lr 0.002, scale 1")] == "diverged"
    assert "k = 8: diverged" in table.rows[1][3]


def test_nothing_is_trained_twice(tmp_path):
    first = FakeEngine(loss=bowl(2, 1))
    found = tuned(tmp_path, first, V1, TOP_K)
    keys = [run.key for run in first.trained]
    assert len(keys) == len(set(keys))
    again = FakeEngine(loss=bowl(2, 1))
    assert tuned(tmp_path, again, V1, TOP_K) == found
    assert not again.trained


def test_tuning_continues_from_records_on_another_machine(tmp_path):
    first, second, path = tmp_path / "first", tmp_path / "second", tmp_path / "runs.jsonl"
    engine, console = FakeEngine(loss=bowl(1, 0)), Console(quiet=True)
    records = Records(path, first)
    keep = lambda run: records.add(run.folder(first))  # noqa: E731
    found = tune(RECIPE, [V1], Grid(), first, console, engine, keep)
    assert len(path.read_text().splitlines()) == len(engine.trained) > len(SQUARE)
    assert Records(path, second).restore() == len(engine.trained)
    idle = FakeEngine()
    assert tune(RECIPE, [V1], Grid(), second, console, idle) == found
    assert idle.trained == []


def test_a_killed_tuning_goes_on_where_it_was(tmp_path):
    class KilledError(Exception):
        pass

    def until(n: int) -> Loss:
        calls = iter(range(10_000))

        def loss(recipe: Recipe) -> float:
            if next(calls) == n:
                raise KilledError
            return bowl(2, 1)(recipe)

        return loss

    whole = FakeEngine(loss=bowl(2, 1))
    expected = tuned(tmp_path / "whole", whole, V1, TOP_K)
    for n in (0, 3, 7, 4, 10_000):
        engine = FakeEngine(loss=until(n))
        try:
            found = tuned(tmp_path / "killed", engine, V1, TOP_K)
        except KilledError:
            assert len(engine.trained) == n + 1
    assert found == expected
