"""How the arms of a study trained: steps to the criterion, scale of their branches, and cost."""

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch

from antiphase.analysis.branch_rms import BranchRMS, branch_rms
from antiphase.analysis.statistics import CensoredSteps, log_rank, seed_interval
from antiphase.experiments.arms import Arm, is_standard
from antiphase.experiments.experiment import Cell, Table
from antiphase.experiments.model_measurements import Numbers
from antiphase.experiments.trained_models import TrainedModel, TrainedModels
from antiphase.training import criterion_of
from antiphase.training.callbacks import cpu_seconds

SEQUENCES = 8


def training_tables(models: TrainedModels, arms: Sequence[Arm]) -> list[Table]:
    """Return the tables of the arms that are trained; empty if none is."""
    trained = [arm for arm in arms if arm in models]
    if not trained:
        return []
    by_task: dict[str, list[Arm]] = {}  # steps on different tasks cannot be compared
    for arm in trained:
        recipe = models[arm][0].run.recipe
        if recipe.criterion is not None:
            by_task.setdefault(recipe.task, []).append(arm)
    tables = [_criterion_table(models, mine) for mine in by_task.values()]
    return [*tables, _branch_table(models, trained)]


def steps_to_criterion(models: Sequence[TrainedModel]) -> CensoredSteps:
    """Return the steps that each seed needed; a seed that did not get there is censored."""
    found = [criterion_of(model.folder) for model in models]
    assert all(c is not None for c in found), "finished runs with a criterion have a record of it"
    known = [c for c in found if c is not None]
    return CensoredSteps(
        tuple(c.step if c.step is not None else c.decay_from for c in known),
        tuple(c.reached for c in known),
    )


def _criterion_table(models: TrainedModels, arms: Sequence[Arm]) -> Table:
    """Return the steps of arms that learn the same task."""
    recipe = models[arms[0]][0].run.recipe
    standard = next((arm for arm in arms if is_standard(arm)), None)
    baseline = None if standard is None else steps_to_criterion(models[standard])
    rows: list[list[Cell]] = []
    for arm in arms:
        steps = steps_to_criterion(models[arm])
        median = "not reached by half" if steps.median is None else f"{steps.median:g}"
        p = ""
        if baseline is not None and arm is not standard:
            p = f"{log_rank(steps, baseline):.3g}"
        each = ", ".join(
            str(n) if reached else f"> {n}"
            for n, reached in zip(steps.steps, steps.reached, strict=True)
        )
        rows.append([arm.name, f"{np.mean(steps.reached):.2f}", median, p, each])
    columns = ["", "fraction of seeds", "median steps", "log-rank p against standard", "by seed"]
    note = (
        "How fast each arm learns. A run that did not get there counts with the steps that it had; "
        "the log-rank test compares all seeds of an arm with those of standard."
    )
    title = f"Steps to an accuracy of {recipe.criterion:g}, task {recipe.task}"
    return Table(title, columns, rows, note)


def _branch_table(models: TrainedModels, arms: Sequence[Arm]) -> Table:
    """Return branch RMS over stream RMS at step 0, after warm-up and at the end."""
    moments: dict[str, int | None] = {}
    steps = models.milestones(arms[0])
    if 0 in steps:
        moments["step 0"] = 0
    if len(steps) > 1:
        moments[f"step {steps[1]}"] = steps[1]
    moments["end"] = None
    columns = [""]
    for moment in moments:
        columns += [f"attention, {moment}", f"feed-forward, {moment}"]
    rows: list[list[Cell]] = []
    for arm in arms:
        cells: list[Cell] = [arm.name]
        for step in moments.values():
            for measure in (attention_ratio, feed_forward_ratio):
                cells.append(seed_interval(models.values(arm, partial(measure, step=step))))
        rows.append(cells)
    note = (
        "How much attention and feed-forward layers add to the residual stream, over what is in "
        "it. Arms that start at different scales learn differently for that reason alone."
    )
    return Table("RMS of a branch over that of its stream, mean over layers", columns, rows, note)


def attention_ratio(model: TrainedModel, step: int | None) -> Numbers:
    """Return the RMS of what attention adds over that of the stream, mean over layers."""
    return np.array([np.mean([branch.attention_ratio for branch in _branches(model, step)])])


def feed_forward_ratio(model: TrainedModel, step: int | None) -> Numbers:
    """Return the same of the feed-forward layers."""
    return np.array([np.mean([branch.feed_forward_ratio for branch in _branches(model, step)])])


@lru_cache(maxsize=4)
def _branches(model: TrainedModel, step: int | None) -> list[BranchRMS]:
    ids = torch.from_numpy(model.held_out(SEQUENCES).examples(range(SEQUENCES)).tokens)
    return branch_rms(model.load(step), ids)


def cost_table(tests: Mapping[str, Sequence[Path]], tuning: Sequence[Path]) -> Table | None:
    """Return the core-hours of each test's runs, of tuning, and of all.

    Args:
        tests: folders of the runs of each test, by its title; tests share runs.
        tuning: folders of the runs that tuned the arms.

    Returns:
        None if no run has recorded its CPU time.
    """
    studied = {folder for folders in tests.values() for folder in folders}
    groups = {**tests, "tuning": tuning, "all, each run once": [*studied, *tuning]}
    seconds = {name: [cpu_seconds(folder) for folder in used] for name, used in groups.items()}
    recorded = {
        name: [used for used in group if used is not None] for name, group in seconds.items()
    }
    if not any(recorded.values()):
        return None
    rows: list[list[Cell]] = [
        [name, str(len(group)), f"{sum(used) / 3600:.1f}", str(len(group) - len(used))]
        for (name, group), used in zip(seconds.items(), recorded.values(), strict=True)
    ]
    columns = ["", "runs", "core-hours", "runs without a record"]
    note = (
        "CPU time of training and of its held-out scores, over all threads; measuring the trained "
        "models is not part of it. A run that several tests need counts in each of them."
    )
    return Table("Cost", columns, rows, note)
