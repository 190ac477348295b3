"""Tuning: the learning rate and the branch scale of each arm, by short runs on seeds of their own.

Every arm is trained at all points of a grid, and takes the point with the lowest held-out loss.
While that point lies on the edge of what was tried, its neighbours beyond the edge are tried, too.
An option of the mechanism that is swept is chosen first, at the centre of the grid. Where one seed
may not be enough, the best points are trained with other seeds, too (`ConfirmedGrid`).
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from antiphase.experiments.arms import Arm, Settings, TrainingRun, arm_recipe
from antiphase.experiments.engine import Engine, Job
from antiphase.experiments.experiment import Cell, Table
from antiphase.experiments.train_all import train_all
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

    @property
    def all_seeds(self) -> tuple[int, ...]:
        """Return the seeds of all tuning runs."""
        return self.seeds

    @property
    def shared(self) -> dict[str, str]:
        """Return the arms that take the settings of another arm, by their names."""
        return {}

    def runs(self, arm: Arm) -> int:
        """Return how many runs tune an arm, before its grid is extended."""
        swept = math.prod(len(values) for values in arm.sweep.values()) if arm.sweep else 0
        return (swept + len(SQUARE)) * len(self.seeds)

    def shortened(self, recipe: Recipe) -> Recipe:
        """Return an arm's recipe with the length of a tuning run, whatever the arm changes."""
        return recipe.changed(steps=self.steps, criterion=None, milestones=[])

    def settings(self, point: Point, options: dict[str, Any]) -> Settings:
        """Return the settings at a point."""
        rate, scale = point
        return Settings(self.lr * 2.0**rate, self.branch_scale * 2.0**scale, options)


@dataclass(frozen=True)
class ConfirmedGrid(Grid):
    """A grid whose best points are trained with more seeds before one is chosen.

    A setting at the edge of what is stable can be the best with one seed and bad with the next.

    Attributes:
        finalists: how many of the best points.
        confirmed_by: the other seeds. The lowest mean over all seeds is taken.
    """

    finalists: int = 3
    confirmed_by: tuple[int, ...] = ()

    @property
    def all_seeds(self) -> tuple[int, ...]:
        return (*self.seeds, *self.confirmed_by)

    def runs(self, arm: Arm) -> int:
        return super().runs(arm) + self.finalists * len(self.confirmed_by)


@dataclass(frozen=True)
class SharedGrid(ConfirmedGrid):
    """A grid for some arms only; the others take what these have found.

    Attributes:
        same_as: arms that take the settings of another arm, by their names.
    """

    same_as: dict[str, str] = field(default_factory=dict)

    @property
    def shared(self) -> dict[str, str]:
        return self.same_as

    def runs(self, arm: Arm) -> int:
        return 0 if arm.name in self.same_as else super().runs(arm)


SQUARE: tuple[Point, ...] = tuple((rate, scale) for rate in (-1, 0, 1) for scale in (-1, 0, 1))
CENTRE: Point = (0, 0)


@dataclass
class ArmTuning:
    """What was tried for an arm: the held-out loss at each point, for one choice of options.

    Attributes:
        arm: that was tuned.
        options: chosen values of the arm's swept options.
        losses: at each point, with these options.
        swept: every choice of options with its loss at the centre; empty if nothing is swept.
        confirmed: mean losses over all seeds of the best points; empty if one grid decides.
    """

    arm: Arm
    options: dict[str, Any]
    losses: dict[Point, float]
    swept: list[tuple[dict[str, Any], float]] = field(default_factory=list)
    confirmed: dict[Point, float] = field(default_factory=dict)

    @property
    def best(self) -> Point:
        """Return the point with the lowest loss, of those that were confirmed if any was."""
        losses = self.confirmed or self.losses
        return min(losses, key=lambda point: (losses[point], point))

    def finalists(self, count: int) -> list[Point]:
        """Return the points with the lowest losses."""
        return sorted(self.losses, key=lambda point: (self.losses[point], point))[:count]

    def beyond_edge(self) -> list[Point]:
        """Return the neighbours of the best point that were not tried."""
        rate, scale = self.best
        around = [(rate + 1, scale), (rate - 1, scale), (rate, scale + 1), (rate, scale - 1)]
        return [point for point in around if point not in self.losses]

    def edges(self) -> list[str]:
        """Return the settings whose chosen value has a side on which nothing was tried."""
        (rate, scale), beyond = self.best, self.beyond_edge()
        found = {
            "lr": any(point[0] != rate for point in beyond),
            "branch scale": any(point[1] != scale for point in beyond),
        }
        for name, values in self.arm.sweep.items():
            ends = (min(values), max(values))
            found[name] = len(values) > 1 and self.options.get(name) in ends
        return [name for name, at_edge in found.items() if at_edge]


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
        wanted: Sequence[tuple[Arm, Settings]], seeds: Sequence[int] = grid.seeds
    ) -> list[float]:
        """Train what is missing; return the loss of each, infinite for a run that diverged."""
        runs = [
            [
                TrainingRun(grid.shortened(arm_recipe(shared, arm, s)).changed(seed=seed))
                for seed in seeds
            ]
            for arm, s in wanted
        ]
        train_all([run for group in runs for run in group], root, console, engine, after_each)
        return [sum(final_loss(run, root) for run in group) / len(group) for group in runs]

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
    if isinstance(grid, ConfirmedGrid):
        wanted = [(tuning, point) for tuning in found for point in tuning.finalists(grid.finalists)]
        settings = [(t.arm, grid.settings(point, t.options)) for t, point in wanted]
        means = losses(settings, grid.all_seeds)
        for (tuning, point), loss in zip(wanted, means, strict=True):
            tuning.confirmed[point] = loss
    return found


def chosen_settings(found: Sequence[ArmTuning], grid: Grid) -> dict[str, Settings]:
    """Return the settings of every arm, those that take another's included."""
    own = {t.arm.name: grid.settings(t.best, t.options) for t in found}
    return own | {name: own[other] for name, other in grid.shared.items() if other in own}


def final_loss(run: TrainingRun, root: Path) -> float:
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
    is_swept = any(tuning.swept for tuning in found)
    is_confirmed = any(tuning.confirmed for tuning in found)
    rows: list[list[Cell]] = []
    for tuning in found:
        edges = tuning.edges()
        row: list[Cell] = [
            tuning.arm.name,
            str(grid.settings(tuning.best, tuning.options)),
            f"at the edge of the grid: {' and '.join(edges)}" if edges else "inside the grid",
        ]
        if is_swept:
            row.append("; ".join(f"{_named(o)}: {_loss(loss)}" for o, loss in tuning.swept))
        if is_confirmed:
            means = (
                f"{grid.settings(p, {})}: {_loss(loss)}" for p, loss in tuning.confirmed.items()
            )
            row.append("; ".join(means))
        losses = (tuning.losses.get(point) for point in tried)
        rows.append([*row, *("" if loss is None else _loss(loss) for loss in losses)])
    centre = grid.settings(CENTRE, {})
    note = (
        "Each arm got the learning rate (lr) and branch scale with the lowest loss, on seeds that "
        "the study does not use. A best setting at the edge of the grid may not be the best there "
        "is."
    )
    if grid.shared:
        pairs = (f"{name} that of {other}" for name, other in grid.shared.items())
        note += f" Not tuned: {'; '.join(pairs)}."
    if is_swept:
        note += f" An option that is swept was chosen first, at {centre}."
    chosen = ["arm", "chosen", "where", *(["swept option"] if is_swept else [])]
    if is_confirmed:
        chosen.append("best settings, mean over seeds")
        note += (
            f" The best settings of seed {', '.join(map(str, grid.seeds))} were trained with more "
            f"seeds ({len(grid.all_seeds)} in all); the lowest mean was taken."
        )
    return Table("Held-out loss of the tuning runs", [*chosen, *columns], rows, note)


def _named(options: dict[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in options.items())


def _loss(loss: float) -> str:
    return f"{loss:.3f}" if math.isfinite(loss) else "diverged"
