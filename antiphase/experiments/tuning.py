"""Tuning: the learning rate and the branch scale of each arm, by runs on seeds of their own.

What is tried, and what counts, is the study's grid (`grids.py`). An option of the mechanism that is
swept is chosen first, at the centre of the grid.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from antiphase.experiments.arms import Arm, Settings, TrainingRun, arm_recipe
from antiphase.experiments.engine import Engine, Job
from antiphase.experiments.experiment import Cell, Table
from antiphase.experiments.grids import CENTRE, SQUARE, ArmTuning, Grid
from antiphase.experiments.train_all import longest_first, train_all
from antiphase.training import Recipe


def tune(
    shared: Recipe,
    arms: Sequence[Arm],
    grid: Grid,
    root: Path,
    console: Console,
    engine: Engine | None = None,
    after_each: Callable[[Job], None] | None = None,
) -> list[ArmTuning]:
    """Tune arms; finished runs are not repeated.

    Args:
        shared: the recipe of the study, whose length and criterion tuning replaces.
        arms: to tune.
        grid: what to try.
        root: folder of all runs.
        console: where progress is shown.
        engine: performs the runs; default: all cores of this machine.
        after_each: called with every finished run.

    Returns:
        One entry per arm that has settings of its own, in their order.
    """

    def losses(
        wanted: Sequence[tuple[Arm, Settings]],
        seeds: Sequence[int] = grid.seeds,
        length: Callable[[Recipe], Recipe] = grid.shortened,
    ) -> list[float]:
        """Train what is missing; return the loss of each, infinite for a run that diverged."""
        runs = [
            [TrainingRun(length(arm_recipe(shared, arm, s)).changed(seed=seed)) for seed in seeds]
            for arm, s in wanted
        ]
        every = longest_first(run for group in runs for run in group)
        train_all(every, root, console, engine, ended)
        return [sum(grid.loss(run, root) for run in group) / len(group) for group in runs]

    def ended(run: Job) -> None:
        if isinstance(run, TrainingRun):
            grid.loss(run, root)  # measured before the run is recorded
        if after_each is not None:
            after_each(run)

    found = [ArmTuning(arm, {}, {}) for arm in arms if arm.name not in grid.shared]
    swept = [
        (tuning, dict(zip(tuning.arm.sweep, values, strict=True)))
        for tuning in found
        for values in itertools.product(*tuning.arm.sweep.values())
        if tuning.arm.sweep
    ]
    at_centre = losses([(t.arm, grid.settings(CENTRE, options)) for t, options in swept])
    lowest: dict[str, float] = {}
    for loss, (tuning, options) in zip(at_centre, swept, strict=True):
        tuning.swept.append((options, loss))
        if loss < lowest.get(tuning.arm.name, math.inf):
            lowest[tuning.arm.name], tuning.options = loss, options
    for round_ in range(grid.extensions + 1):
        wanted = [
            (tuning, point)
            for tuning in found
            for point in (SQUARE if round_ == 0 else tuning.beyond_edge())
        ]
        settings = [(t.arm, grid.settings(point, t.options)) for t, point in wanted]
        for (tuning, point), loss in zip(wanted, losses(settings), strict=True):
            tuning.losses[point] = loss
    for _ in range(grid.final_rounds):
        wanted = [(tuning, point) for tuning in found for point in grid.finalists(tuning)]
        settings = [(t.arm, grid.settings(point, t.options)) for t, point in wanted]
        means = losses(settings, grid.final_seeds, grid.full_length)
        for (tuning, point), loss in zip(wanted, means, strict=True):
            tuning.full[point] = loss
    return found


def chosen_settings(found: Sequence[ArmTuning], grid: Grid) -> dict[str, Settings]:
    """Return the settings of every arm, those that take another's included."""
    own = {t.arm.name: grid.settings(t.best, t.options) for t in found}
    return own | {name: own[other] for name, other in grid.shared.items() if other in own}


def tuning_table(found: Sequence[ArmTuning], grid: Grid) -> Table:
    """Return what was tried and chosen, one row per arm."""
    tried = sorted(
        {point for tuning in found for point in tuning.losses}, key=lambda p: (p[1], p[0])
    )
    columns = [
        f"lr {s.lr:g}, scale {s.branch_scale:g}" for s in (grid.settings(p, {}) for p in tried)
    ]
    is_swept = any(tuning.swept for tuning in found)
    has_full = any(tuning.full for tuning in found)
    rows: list[list[Cell]] = []
    for tuning in found:
        edges = tuning.edges(grid.untried(tuning))
        row: list[Cell] = [
            tuning.arm.name,
            str(grid.settings(tuning.best, tuning.options)),
            f"at the edge of the grid: {' and '.join(edges)}" if edges else "inside the grid",
        ]
        if is_swept:
            row.append("; ".join(f"{_named(o)}: {_loss(loss)}" for o, loss in tuning.swept))
        if has_full:
            means = (f"{grid.settings(p, {})}: {_loss(loss)}" for p, loss in tuning.full.items())
            row.append("; ".join(means))
        losses = (tuning.losses.get(point) for point in tried)
        rows.append([*row, *("" if loss is None else _loss(loss) for loss in losses)])
    centre = grid.settings(CENTRE, {})
    note = (
        "Each arm got the learning rate (lr) and branch scale with the lowest value, on seeds that "
        "the study does not use. A best setting at the edge of the grid may not be the best there "
        "is."
    )
    if grid.shared:
        pairs = (f"{name} that of {other}" for name, other in grid.shared.items())
        note += f" Not tuned: {'; '.join(pairs)}."
    if is_swept:
        note += f" An option that is swept was chosen first, at {centre}."
    chosen = ["arm", "chosen", "where", *(["swept option"] if is_swept else [])]
    if has_full:
        chosen.append(grid.final_column)
        note += f" {grid.note}"
    return Table(f"{grid.judged_by} of the tuning runs", [*chosen, *columns], rows, note)


def _named(options: dict[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in options.items())


def _loss(loss: float) -> str:
    return f"{loss:.3f}" if math.isfinite(loss) else "diverged"
