"""Tuning: the learning rate and the branch scale of each arm, by short runs on seeds of their own.

Every arm is trained at all points of a grid, and takes the point with the lowest held-out loss.
While that point lies on the edge of what was tried, its neighbours beyond the edge are tried, too.
An option of the mechanism that is swept is chosen first, at the centre of the grid.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from antiphase.experiments.arms import Arm, Settings, TrainingRun, arm_recipe
from antiphase.experiments.engine import LocalEngine, train_all
from antiphase.experiments.experiment import Cell, Table
from antiphase.training import Recipe
from antiphase.training.callbacks import read_metrics

Point = tuple[int, int]
"""A point of the grid: powers of 2 on the learning rate and on the branch scale."""


@dataclass(frozen=True)
class Grid:
    """The settings that tuning tries for each arm.

    Attributes:
        lr: of the centre; its neighbours are half and twice as large.
        branch_scale: of the centre, likewise.
        steps: length of a tuning run.
        seeds: that no study uses.
        extensions: how often an arm's grid may grow beyond its edge.
    """

    lr: float = 1e-3
    branch_scale: float = 1.0
    steps: int = 300
    seeds: tuple[int, ...] = (900,)
    extensions: int = 2

    def settings(self, point: Point, options: dict[str, Any]) -> Settings:
        """Return the settings at a point."""
        rate, scale = point
        return Settings(self.lr * 2.0**rate, self.branch_scale * 2.0**scale, options)


SQUARE: tuple[Point, ...] = tuple((rate, scale) for rate in (-1, 0, 1) for scale in (-1, 0, 1))
CENTRE: Point = (0, 0)


@dataclass
class ArmTuning:
    """What was tried for an arm: the held-out loss at each point, for one choice of options."""

    arm: Arm
    options: dict[str, Any]
    losses: dict[Point, float]

    @property
    def best(self) -> Point:
        """Return the point with the lowest loss."""
        return min(self.losses, key=lambda point: (self.losses[point], point))

    def beyond_edge(self) -> list[Point]:
        """Return the neighbours of the best point that were not tried."""
        rate, scale = self.best
        around = [(rate + 1, scale), (rate - 1, scale), (rate, scale + 1), (rate, scale - 1)]
        return [point for point in around if point not in self.losses]


def tune(
    shared: Recipe,
    arms: Sequence[Arm],
    grid: Grid,
    root: Path,
    console: Console,
    engine: LocalEngine | None = None,
) -> list[ArmTuning]:
    """Tune arms; finished runs are not repeated.

    Args:
        shared: the recipe of the study, whose length and criterion tuning replaces.
        arms: to tune.
        grid: what to try.
        root: folder of all runs.
        console: where progress is shown.
        engine: performs the runs; default: all cores of this machine.

    Returns:
        One entry per arm, in their order.
    """
    shared = shared.changed(steps=grid.steps, criterion=None, milestones=[])

    def losses(wanted: Sequence[tuple[Arm, Settings]]) -> list[float]:
        """Train what is missing; return the loss of each, infinite for a run that diverged."""
        runs = [
            [TrainingRun(arm_recipe(shared, arm, s).changed(seed=seed)) for seed in grid.seeds]
            for arm, s in wanted
        ]
        train_all([run for group in runs for run in group], root, console, engine)
        return [sum(_held_out_loss(run, root) for run in group) / len(group) for group in runs]

    found = [ArmTuning(arm, {}, {}) for arm in arms]
    swept = [
        (tuning, dict(zip(tuning.arm.sweep, values, strict=True)))
        for tuning in found
        for values in itertools.product(*tuning.arm.sweep.values())
        if tuning.arm.sweep
    ]
    at_centre = losses([(t.arm, grid.settings(CENTRE, options)) for t, options in swept])
    lowest: dict[str, float] = {}
    for loss, (tuning, options) in zip(at_centre, swept, strict=True):
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
    return found


def _held_out_loss(run: TrainingRun, root: Path) -> float:
    """Return the held-out loss at the end of a run; infinite if it did not get there."""
    if not run.finished(root):
        return math.inf
    lines = [line for line in read_metrics(run.folder(root)) if "held_out_loss" in line]
    return float(lines[-1]["held_out_loss"]) if lines else math.inf


def tuning_table(found: Sequence[ArmTuning], grid: Grid) -> Table:
    """Return what was tried and chosen, one row per arm."""
    tried = sorted(
        {point for tuning in found for point in tuning.losses}, key=lambda p: (p[1], p[0])
    )
    columns = [
        f"lr {s.lr:g}, scale {s.branch_scale:g}" for s in (grid.settings(p, {}) for p in tried)
    ]
    rows: list[list[Cell]] = []
    for tuning in found:
        losses = (tuning.losses.get(point) for point in tried)
        cells: list[Cell] = ["" if loss is None else f"{loss:.3f}" for loss in losses]
        chosen = str(grid.settings(tuning.best, tuning.options))
        edge = ", at the edge" if tuning.beyond_edge() else ""
        rows.append([tuning.arm.name, chosen + edge, *cells])
    note = (
        "Each arm got the learning rate and branch scale with the lowest loss, on seeds that the "
        "study does not use. A best point at the edge may not be the best there is."
    )
    return Table("Held-out loss of the tuning runs", ["arm", "chosen", *columns], rows, note)
