"""Grids: which settings tuning tries for an arm, with what runs, and by what it judges them.

Every arm is trained at all points of a grid, and takes the point with the lowest held-out loss.
While that point lies on the edge of what was tried, its neighbours beyond the edge are tried, too.

Short runs and the loss as trained may choose the wrong setting. `FullLengthGrid` lets runs as long
as those of the study choose the rate; `MeasuredGrid` tunes by the errors where arms are compared.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from antiphase.experiments.arms import Arm, Settings, TrainingRun
from antiphase.experiments.conditions import Condition
from antiphase.experiments.model_measurements import validation_errors
from antiphase.experiments.trained_models import TrainedModel, TrainedModels
from antiphase.training import Recipe
from antiphase.training.callbacks import read_metrics

Point = tuple[int, int]
"""A point of the grid: powers of 2 on the learning rate and on the branch scale."""
TUNING = "tuning, version 1"  # who measures tuning runs; raised by hand
SQUARE: tuple[Point, ...] = tuple((rate, scale) for rate in (-1, 0, 1) for scale in (-1, 0, 1))
CENTRE: Point = (0, 0)


@dataclass
class ArmTuning:
    """What was tried for an arm: the held-out loss at each point, for one choice of options.

    Attributes:
        arm: that was tuned.
        options: chosen values of the arm's swept options.
        losses: at each point, with these options; for some grids, errors.
        swept: every choice of options with its loss at the centre; empty if nothing is swept.
        full: mean losses of the points of the grid's second stage; empty if it has none.
    """

    arm: Arm
    options: dict[str, Any]
    losses: dict[Point, float]
    swept: list[tuple[dict[str, Any], float]] = field(default_factory=list)
    full: dict[Point, float] = field(default_factory=dict)

    @property
    def best(self) -> Point:
        """Return the point with the lowest loss; the second stage decides where there is one."""
        losses = self.full or self.losses
        return min(losses, key=lambda point: (losses[point], point))

    def next_at_full_length(self) -> list[Point]:
        """Return the best rate and its neighbours, as far as they were not trained, to be trained.

        Each with the best branch scale at that rate, or at the nearest one that has been tried.
        """
        rate, tried = self.best[0], {rate for rate, _ in self.full}
        return [self._best_at(r) for r in (rate - 1, rate, rate + 1) if r not in tried]

    def _best_at(self, rate: int) -> Point:
        nearest = min((r for r, _ in self.losses), key=lambda r: (abs(r - rate), r))
        scales = [point for point in self.losses if point[0] == nearest]
        return rate, min(scales, key=lambda point: (self.losses[point], point))[1]

    def beyond_edge(self) -> list[Point]:
        """Return the neighbours of the best point that were not tried."""
        rate, scale = self.best
        around = [(rate + 1, scale), (rate - 1, scale), (rate, scale + 1), (rate, scale - 1)]
        return [point for point in around if point not in self.losses]

    def edges(self, untried: Sequence[Point]) -> list[str]:
        """Return the settings whose chosen value has a side on which nothing was tried.

        Args:
            untried: neighbours of the best point, as the grid says (`Grid.untried`).
        """
        rate, scale = self.best
        found = {
            "lr": any(r != rate for r, _ in untried),
            "branch scale": any(r == rate and s != scale for r, s in untried),
        }
        for name, values in self.arm.sweep.items():
            ends = (min(values), max(values))
            found[name] = len(values) > 1 and self.options.get(name) in ends
        return [name for name, at_edge in found.items() if at_edge]


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

    judged_by: ClassVar[str] = "Held-out loss"
    final_column: ClassVar[str] = ""
    """Heading of the losses of the second stage, where there is one."""

    @property
    def final_seeds(self) -> tuple[int, ...]:
        """Return the seeds of the second stage."""
        return ()

    @property
    def final_rounds(self) -> int:
        """Return how often `finalists` are asked for."""
        return 0

    @property
    def all_seeds(self) -> tuple[int, ...]:
        """Return the seeds of all tuning runs."""
        return tuple(dict.fromkeys((*self.seeds, *self.final_seeds)))

    @property
    def shared(self) -> dict[str, str]:
        """Return the arms that take the settings of another arm, by their names."""
        return {}

    @property
    def note(self) -> str:
        """Return how the settings were chosen, beyond what every grid does."""
        return ""

    def runs(self, arm: Arm) -> int:
        """Return how many short runs tune an arm, before its grid is extended."""
        swept = math.prod(len(values) for values in arm.sweep.values()) if arm.sweep else 0
        return (swept + len(SQUARE)) * len(self.seeds)

    def full_runs(self, arm: Arm) -> int:
        """Return how many runs of the study's length tune an arm, before they are extended."""
        return 0

    def shortened(self, recipe: Recipe) -> Recipe:
        """Return an arm's recipe with the length of a tuning run, whatever the arm changes."""
        return self.full_length(recipe).changed(steps=self.steps)

    def full_length(self, recipe: Recipe) -> Recipe:
        """Return an arm's recipe as tuning trains it, with the length that it has in the study."""
        return recipe.changed(criterion=None, milestones=[])

    def loss(self, run: TrainingRun, root: Path) -> float:
        """Return the number by which a tuning run is judged; infinite if it diverged."""
        return final_loss(run, root)

    def settings(self, point: Point, options: dict[str, Any]) -> Settings:
        """Return the settings at a point."""
        rate, scale = point
        return Settings(self.lr * 2.0**rate, self.branch_scale * 2.0**scale, options)

    def finalists(self, tuning: ArmTuning) -> list[Point]:
        """Return the points of an arm that the second stage trains next."""
        return []

    def untried(self, tuning: ArmTuning) -> list[Point]:
        """Return the neighbours of an arm's best point that could be better and were not tried."""
        return tuning.beyond_edge()


@dataclass(frozen=True)
class FullLengthGrid(Grid):
    """A grid whose short runs choose the branch scale, and runs of full length the learning rate.

    Short runs choose what is fast. On text that was a rate below the best for some arms and the
    best for others, and it decided between them (docs/log.md). So the best rate of the short runs
    and its two neighbours are trained as long as the study's runs, each with its best branch scale.

    Attributes:
        full_seeds: of the runs of full length; the lowest mean loss is taken.
        full_extensions: how often the next rate is trained while the best one is at the edge.
    """

    full_seeds: tuple[int, ...] = ()
    full_extensions: int = 2

    final_column: ClassVar[str] = "at full length"

    @property
    def final_seeds(self) -> tuple[int, ...]:
        return self.full_seeds

    @property
    def final_rounds(self) -> int:
        return self.full_extensions + 1 if self.full_seeds else 0

    @property
    def note(self) -> str:
        return (
            "Short runs chose the branch scale of each rate; the rate was chosen by runs as long "
            f"as those of the study (seed {', '.join(map(str, self.full_seeds))})."
        )

    def full_runs(self, arm: Arm) -> int:
        return 3 * len(self.full_seeds)

    def finalists(self, tuning: ArmTuning) -> list[Point]:
        return tuning.next_at_full_length()

    def untried(self, tuning: ArmTuning) -> list[Point]:
        scales = [point for point in tuning.beyond_edge() if point[0] == tuning.best[0]]
        rates = [point for point in tuning.next_at_full_length() if point[0] != tuning.best[0]]
        return [*rates, *scales] if tuning.full else tuning.beyond_edge()


@dataclass(frozen=True)
class SharedGrid(FullLengthGrid):
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

    def full_runs(self, arm: Arm) -> int:
        return 0 if arm.name in self.same_as else super().full_runs(arm)


@dataclass(frozen=True)
class MeasuredGrid(Grid):
    """A grid whose runs are those of the study, judged by what it compares: errors in a condition.

    As trained, all settings that learn a task have a loss near 0, so that loss chooses among them
    by chance; under stress they differ, and that decided how far arms were apart (docs/log.md). A
    run under stress says little alone, so the best points are trained with further seeds. The loss
    under stress would prefer lower rates than errors do, whose wrong answers are less certain.

    Attributes:
        conditions: of the validation sequences, by the name of the task.
        confirmed: how many points of an arm are trained with the further seeds.
        confirming_seeds: these seeds; the lowest mean over all seeds is taken.
    """

    conditions: dict[str, Condition] = field(default_factory=dict)
    confirmed: int = 3
    confirming_seeds: tuple[int, ...] = ()

    judged_by: ClassVar[str] = "Errors"
    final_column: ClassVar[str] = "with all seeds"

    @property
    def final_seeds(self) -> tuple[int, ...]:
        return (*self.seeds, *self.confirming_seeds)

    @property
    def final_rounds(self) -> int:
        return 1 if self.confirming_seeds else 0

    @property
    def note(self) -> str:
        conditions = "; ".join(f"{task}: {c.name}" for task, c in self.conditions.items())
        first, further = (", ".join(map(str, s)) for s in (self.seeds, self.confirming_seeds))
        return (
            "Tuning runs are trained as those of the study. What counts is the fraction of wrong "
            f"answers to validation sequences, under the condition of the study ({conditions}). "
            f"The best {self.confirmed} points of seeds {first} were trained with seeds {further}, "
            "too; the lowest mean over all was taken."
        )

    def runs(self, arm: Arm) -> int:
        return 0

    def full_runs(self, arm: Arm) -> int:
        return super().runs(arm) + self.confirmed * len(self.confirming_seeds)

    def shortened(self, recipe: Recipe) -> Recipe:
        return self.full_length(recipe)

    def full_length(self, recipe: Recipe) -> Recipe:
        return recipe.changed(milestones=[])

    def loss(self, run: TrainingRun, root: Path) -> float:
        if not run.finished(root):
            return math.inf
        folder, arm = run.folder(root), Arm(run.title, run.recipe.attention)
        models = TrainedModels({arm.name: [TrainedModel(arm.name, run, folder)]}, TUNING)
        measure = partial(validation_errors, condition=self.conditions[run.recipe.task])
        (values,) = models.values(arm, measure)
        return float(values.mean())

    def finalists(self, tuning: ArmTuning) -> list[Point]:
        ordered = sorted(tuning.losses, key=lambda point: (tuning.losses[point], point))
        return ordered[: self.confirmed]


def final_loss(run: TrainingRun, root: Path) -> float:
    """Return the held-out loss at the end of a run; infinite if it did not get there."""
    if not run.finished(root):
        return math.inf
    lines = [line for line in read_metrics(run.folder(root)) if "held_out_loss" in line]
    return float(lines[-1]["held_out_loss"]) if lines else math.inf
