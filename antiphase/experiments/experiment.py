"""What a test of the lab is: arms to train, predictions written down before, effects measured."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from antiphase.analysis.statistics import Values, bootstrap, difference
from antiphase.experiments.arms import Arm, Trained
from antiphase.experiments.verdicts import Prediction
from antiphase.training import Recipe, load_recipe

SEEDS = (0, 1, 2)
MILESTONES = [0, 100, 200, 300, 400, 500, 600, 700]


def base(attention: str, length: int = 64, **changes: Any) -> Recipe:
    """Return the recipe that all arms share; a longer text keeps the tokens of a step.

    Needles come as often for each token, so that the questions of a step stay as many.
    """
    recipe = load_recipe("needle-nano")
    options = {**recipe.task_options, "length": length, "repeats": length // 16 - 1}
    return recipe.changed(
        attention=attention,
        task_options=options,
        batch_size=recipe.batch_size * 64 // length,
        steps=700,
        threads=1,
        evaluate_every=100,
        checkpoint_every=350,
    ).changed(**changes)


COMMON = base("standard", milestones=MILESTONES)
STANDARD = Arm("standard", COMMON)
V1 = Arm("V1", base("diff_v1", milestones=MILESTONES))
V2 = Arm("V2", base("diff_v2", milestones=MILESTONES))


@dataclass(frozen=True)
class Table:
    """Rows of intervals (or words) under headings."""

    title: str
    columns: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class Picture:
    """Lines or bars with intervals; how it is drawn is the report's business."""

    title: str
    x: str
    y: str
    series: dict[str, list[tuple[Any, Any]]]  # name to (x, Interval)
    kind: Literal["lines", "bars"] = "lines"


@dataclass(frozen=True)
class Heatmap:
    """A grid of numbers with names on both sides."""

    title: str
    x: str
    y: str
    columns: list[str]
    rows: list[str]
    values: list[list[float]]


@dataclass
class Measured:
    """What a test found."""

    effects: dict[str, Values]  # that predictions speak of
    tables: list[Table] = field(default_factory=list)
    pictures: list[Picture | Heatmap] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what a reader must know beside the verdicts


class Shelf:
    """The trained models by arm, one a seed."""

    def __init__(self, models: dict[str, list[Trained]]) -> None:
        self._models = models

    def __getitem__(self, arm: Arm) -> list[Trained]:
        return self._models[arm.name]

    def __contains__(self, arm: Arm) -> bool:
        return bool(self._models.get(arm.name))

    def milestones(self, arm: Arm) -> list[int]:
        """Return the steps whose weights were kept."""
        return self[arm][0].job.recipe.milestones

    def values(self, arm: Arm, measure: Callable[[Trained], NDArray[np.float64]]) -> Values:
        """Return a measure of every seed's model."""
        return [measure(trained) for trained in self[arm]]

    def gain(
        self, one: Arm, other: Arm, measure: Callable[[Trained], NDArray[np.float64]]
    ) -> Values:
        """Return how much more of it one arm has than another, paired by seed and example."""
        return difference(self.values(one, measure), self.values(other, measure))


class Experiment(ABC):
    """One test."""

    number: ClassVar[int]
    title: ClassVar[str]
    question: ClassVar[str]
    quick: ClassVar[Sequence[Arm]] = ()  # the arms that a quick run has; none: it is left out
    version: ClassVar[int] = 1  # raised by hand when what is measured changes
    amended: ClassVar[str] = ""  # what was changed after a first run had been seen, and why
    predictions: ClassVar[Sequence[Prediction]]
    arms: ClassVar[Sequence[Arm]]

    @abstractmethod
    def measure(self, shelf: Shelf) -> Measured:
        """Return effects, tables and pictures of the trained arms."""


def bars(title: str, y: str, series: dict[str, dict[str, Values]]) -> Picture:
    """Return a bar for each name of each series."""
    points: dict[str, list[tuple[Any, Any]]] = {
        name: [(x, bootstrap(values)) for x, values in group.items()]
        for name, group in series.items()
    }
    return Picture(title, "", y, points, "bars")


def interval_row(name: str, *values: Values) -> list[str]:
    """Return a table's row: a name, then the intervals."""
    return [name, *(str(bootstrap(v)) for v in values)]
