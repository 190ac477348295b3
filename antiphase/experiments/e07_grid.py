"""Test 7: the grid that separates the readings, sequence length against noise."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from antiphase.analysis.statistics import Values, difference
from antiphase.experiments.arms import STANDARD, V1, V2, Arm
from antiphase.experiments.conditions import (
    DISTRACTORS,
    LENGTHS,
    STRESS,
    Cell,
    Condition,
    grid,
)
from antiphase.experiments.contests import learned_effects, noise_effect
from antiphase.experiments.experiment import (
    Experiment,
    Figure,
    Heatmap,
    Measurement,
    Table,
    interval_row,
)
from antiphase.experiments.model_measurements import Numbers, accuracy, answer_loss
from antiphase.experiments.trained_models import TrainedModels
from antiphase.experiments.verdicts import Effect, Prediction, learned, noise, room

SIZE = 0.1  # nats
Cells = Mapping[Cell, Values]
"""A quantity in each cell of the grid, by seed and example."""


def gain_in(what: str) -> str:
    """Return the name of how much lower a loss is than that of standard attention."""
    return f"gain in {what} over standard"


@dataclass(frozen=True)
class Axes:
    """The two axes of a grid, from easy to hard, and how its cells combine.

    Attributes:
        lengths: times the length in training.
        distractors: how near the distractors are.
    """

    lengths: tuple[float, ...]
    distractors: tuple[str, ...]

    @property
    def cells(self) -> dict[Cell, Condition]:
        """Return the condition of each cell."""
        return grid(self.lengths, self.distractors)

    @property
    def noise_name(self) -> str:
        """Return the name of the effect of noise."""
        return f"{self.distractors[-1]} minus {self.distractors[0]}, mean over lengths"

    @property
    def length_name(self) -> str:
        """Return the name of the effect of length."""
        return f"{self.lengths[-1]:g}x minus {self.lengths[0]:g}x length, mean over noise"

    def by_noise(self, cells: Cells) -> Values:
        """Return what the most noise adds to the least, as a mean over lengths."""
        far, near = self.distractors[0], self.distractors[-1]
        return mean_of([difference(cells[n, near], cells[n, far]) for n in self.lengths])

    def by_length(self, cells: Cells) -> Values:
        """Return what the largest length adds to the smallest, as a mean over noise."""
        short, long = self.lengths[0], self.lengths[-1]
        return mean_of([difference(cells[long, d], cells[short, d]) for d in self.distractors])


def mean_of(cells: list[Values]) -> Values:
    """Return the mean over cells, by seed and example."""
    return [np.mean(seed, axis=0) for seed in zip(*cells, strict=True)]


AXES = Axes(LENGTHS, DISTRACTORS)
BY_NOISE, BY_LENGTH = (
    Effect(gain_in("loss"), V1.name, condition=name) for name in (AXES.noise_name, AXES.length_name)
)
LOSS = Effect("loss", STANDARD.name, condition=STRESS.name)
GATES = (learned(V1.name), learned(STANDARD.name), room(LOSS, SIZE), noise(STRESS.name))


class GridTest(Experiment):
    """Length x noise: how much lower the loss is than standard's in each cell."""

    axes: ClassVar[Axes] = AXES
    what: ClassVar[str] = LOSS.metric
    of_answers: ClassVar[Callable[..., Numbers]] = staticmethod(answer_loss)
    stress: ClassVar[Condition] = STRESS
    version = 4
    arms: ClassVar[Sequence[Arm]] = (STANDARD, V1, V2)
    predictions: ClassVar[Sequence[Prediction]] = (
        Prediction(
            "cancelling",
            BY_NOISE,
            "more",
            SIZE,
            "the gain grows with noise at fixed length",
            GATES,
            primary=True,
        ),
        Prediction(
            "sparsity",
            BY_LENGTH,
            "more",
            SIZE,
            "the gain grows with length at fixed noise",
            GATES,
            primary=True,
        ),
        Prediction("sparsity", BY_NOISE, "same", SIZE, "noise as such plays no role", GATES),
    )

    def measure(self, models: TrainedModels) -> Measurement:
        gains = {arm.name: self.gains(models, arm) for arm in self.arms[1:]}
        under_stress = Effect(self.what, STANDARD.name, condition=self.stress.name)
        of_answers = partial(self.of_answers, condition=self.stress)
        effects: dict[Effect, Values] = {under_stress: models.values(STANDARD, of_answers)}
        for name, cells in gains.items():
            of_arm = partial(Effect, gain_in(self.what), name)
            effects[of_arm(condition=self.axes.noise_name)] = self.axes.by_noise(cells)
            effects[of_arm(condition=self.axes.length_name)] = self.axes.by_length(cells)
        gated = {g.effect.arm for p in self.predictions for g in p.gates if g.kind == "learned"}
        effects |= learned_effects(models, [arm for arm in self.arms if arm.name in gated])
        effects |= noise_effect(models, STANDARD, self.stress)
        conditions = self.axes.cells.values()
        tables = [
            Table(
                title,
                ["", *(condition.name for condition in conditions)],
                [
                    interval_row(
                        arm.name,
                        *(models.values(arm, partial(measure, condition=c)) for c in conditions),
                    )
                    for arm in self.arms
                ],
            )
            for title, measure in (
                (f"{self.what.capitalize()} on the answer", self.of_answers),
                ("Accuracy", accuracy),
            )
        ]
        return Measurement(effects, tables, [self._heatmap(name, gains[name]) for name in gains])

    def gains(self, models: TrainedModels, arm: Arm) -> dict[Cell, Values]:
        """Return the loss of standard minus that of an arm, in each cell."""
        standard, mine = self.losses(models, STANDARD), self.losses(models, arm)
        return {cell: difference(standard[cell], mine[cell]) for cell in mine}

    def losses(self, models: TrainedModels, arm: Arm) -> dict[Cell, Values]:
        """Return the loss of an arm on the answer, in each cell."""
        return {
            cell: models.values(arm, partial(self.of_answers, condition=condition))
            for cell, condition in self.axes.cells.items()
        }

    def _heatmap(self, name: str, cells: Cells) -> Figure:
        lengths, distractors = self.axes.lengths, self.axes.distractors
        means = {cell: float(np.mean([v.mean() for v in seeds])) for cell, seeds in cells.items()}
        return Heatmap(
            f"{self.what.capitalize()} of standard minus that of {name}",
            "distractors",
            "times the length in training",
            list(distractors),
            [f"{n:g}" for n in lengths],
            [[means[n, near] for near in distractors] for n in lengths],
            "nats, mean over seeds",
        )
