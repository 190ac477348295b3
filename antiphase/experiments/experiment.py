"""What a test of the lab is: arms to train, predictions written before, effects measured after."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from antiphase.analysis.statistics import Interval, Values, seed_interval
from antiphase.experiments.arms import Arm
from antiphase.experiments.conditions import CONDITIONS, Condition
from antiphase.experiments.trained_models import TrainedModels
from antiphase.experiments.verdicts import Effect, Prediction

Cell = str | Interval
"""What a cell of a table holds."""


@dataclass(frozen=True)
class Table:
    """Rows of cells under headings; `note` says what they show."""

    title: str
    columns: list[str]
    rows: list[list[Cell]]
    note: str = ""


@dataclass(frozen=True)
class Chart:
    """Lines or bars with intervals, for either drawing library.

    Without a name of the y axis, each x has a unit of its own and is drawn as a panel of its own.
    """

    title: str
    x: str
    y: str
    series: dict[str, list[tuple[Any, Interval]]]  # name to (x, interval)
    kind: Literal["lines", "bars"] = "lines"


@dataclass(frozen=True)
class Heatmap:
    """A grid of numbers with names on both axes."""

    title: str
    x: str
    y: str
    columns: list[str]
    rows: list[str]
    values: list[list[float]]
    unit: str = ""


Figure = Chart | Heatmap


@dataclass
class Measurement:
    """What a test measured.

    Attributes:
        effects: values by seed and example of every effect, predicted or not.
        tables: for the report.
        figures: for the report.
        notes: what a reader of the verdicts must know; the report marks the test with a dagger.
    """

    effects: dict[Effect, Values]
    tables: list[Table] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class Experiment(ABC):
    """One test. Its number, title and question are in `registry.py`.

    Attributes:
        arms: the models to train.
        predictions: written before the first run.
        conditions: of the held-out sequences that are measured; part of a study's lock.
        version: raised by hand when what is measured changes, so that it is measured again.
        amended: what was changed after a first run had been seen, and why; empty if nothing.
        by_model: whether all that needs weights is `models.values` or `models.gain` of named
            measures, whatever their numbers. A run is then measured when it ends, before other runs
            of its seed.
    """

    arms: ClassVar[Sequence[Arm]]
    predictions: ClassVar[Sequence[Prediction]]
    conditions: ClassVar[Sequence[Condition]] = CONDITIONS
    version: ClassVar[int] = 1
    amended: ClassVar[str] = ""
    by_model: ClassVar[bool] = False

    @abstractmethod
    def measure(self, models: TrainedModels) -> Measurement:
        """Measure the trained arms.

        Returns:
            The effects of all predictions, by seed and example, with tables and figures.
        """


def bar_chart(title: str, y: str, series: dict[str, dict[str, Values]]) -> Chart:
    """Return a chart with a bar for each name of each series."""
    points: dict[str, list[tuple[Any, Interval]]] = {
        name: [(x, seed_interval(values)) for x, values in group.items()]
        for name, group in series.items()
    }
    return Chart(title, "", y, points, "bars")


def interval_row(name: str, *values: Values) -> list[Cell]:
    """Return a table's row: a name, then one interval per column."""
    return [name, *(seed_interval(v) for v in values)]
