"""The trained models that a test measures, by arm and seed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphase.analysis.statistics import Values, difference
from antiphase.experiments.arms import Arm, TrainingRun
from antiphase.models import AntiphaseForCausalLM
from antiphase.tasks import task


@dataclass(frozen=True)
class TrainedModel:
    """The model of a finished run."""

    run: TrainingRun
    folder: Path

    def load(self, step: int | None = None) -> AntiphaseForCausalLM:
        """Load the model at the run's end, or at a milestone."""
        path = self.folder / ("model" if step is None else f"milestones/step{step}")
        return AntiphaseForCausalLM.from_pretrained(path).eval()

    def held_out(self, size: int, split: str = "test", **changes: Any) -> Any:
        """Return the run's task on a held-out split, with some options changed if given."""
        recipe = self.run.recipe
        options = {**recipe.task_options, **changes}
        return task(recipe.task)(split=split, size=size, seed=recipe.seed, **options)


Measure = Callable[[TrainedModel], NDArray[np.float64]]
"""From one model to one number per example."""


class TrainedModels:
    """The trained models of some arms, one per seed and in the same order of seeds."""

    def __init__(self, models: dict[str, list[TrainedModel]]) -> None:
        self._models = models

    @classmethod
    def finished(cls, arms: Sequence[Arm], seeds: Sequence[int], root: Path) -> "TrainedModels":
        """Return the arms of which every seed is trained."""
        runs = {arm.name: [arm.training_run(seed) for seed in seeds] for arm in arms}
        return cls(
            {
                name: [TrainedModel(run, run.folder(root)) for run in mine]
                for name, mine in runs.items()
                if all(run.finished(root) for run in mine)
            }
        )

    def __getitem__(self, arm: Arm) -> list[TrainedModel]:
        return self._models[arm.name]

    def __contains__(self, arm: Arm) -> bool:
        return bool(self._models.get(arm.name))

    def milestones(self, arm: Arm) -> list[int]:
        """Return the steps at which the arm's weights were kept."""
        return self[arm][0].run.recipe.milestones

    def values(self, arm: Arm, measure: Measure) -> Values:
        """Measure every seed's model of an arm."""
        return [measure(model) for model in self[arm]]

    def gain(self, one: Arm, other: Arm, measure: Measure) -> Values:
        """Return how much higher one arm is than another, paired by seed and example."""
        return difference(self.values(one, measure), self.values(other, measure))
