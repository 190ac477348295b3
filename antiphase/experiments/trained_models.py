"""The trained models that a test measures, by arm and seed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphase.analysis.statistics import Values, difference
from antiphase.experiments.arms import Arm, TrainingRun
from antiphase.experiments.conditions import AS_TRAINED, Condition
from antiphase.experiments.measured_values import measure_name, measured_values
from antiphase.models import AntiphaseConfig, AntiphaseForCausalLM
from antiphase.training.components import dataset


@dataclass(frozen=True)
class TrainedModel:
    """The model of a finished run.

    Attributes:
        arm: name of its arm.
        run: that trained it.
        folder: of the run.
    """

    arm: str
    run: TrainingRun
    folder: Path

    def load(self, step: int | None = None) -> AntiphaseForCausalLM:
        """Load the model at the run's end, or at a milestone; it is shared, leave it unchanged.

        Raises:
            FileNotFoundError: the run was trained on another machine, and its weights are there.
        """
        return _load(self.folder / ("model" if step is None else f"milestones/step{step}"))

    @property
    def config(self) -> AntiphaseConfig:
        """Return the configuration of the model, for which no weights are needed."""
        return AntiphaseConfig.from_pretrained(self.folder / "model")

    def milestones(self) -> list[int]:
        """Return the steps whose weights were kept, first to last."""
        wanted = self.run.recipe.milestones  # a run may have ended before some of them
        return [step for step in wanted if (self.folder / f"milestones/step{step}").is_dir()]

    def held_out(self, size: int, split: str = "test", condition: Condition = AS_TRAINED) -> Any:
        """Return the run's task on a held-out split, under a condition."""
        recipe = self.run.recipe
        return dataset(recipe.changed(task_options=condition.task_options(recipe)), split, size)


def has_weights(path: Path) -> bool:
    """Return whether a model's folder has them: those of a recorded run stay where it trained."""
    return any(path.glob("*.safetensors"))


@lru_cache(maxsize=64)  # loading a small model takes longer than most measurements of it
def _load(path: Path) -> AntiphaseForCausalLM:
    if not has_weights(path):
        raise FileNotFoundError(
            f"{path}: has no weights; the run is one of --records, which keep none. Remove its "
            "folder, and its line there, to train it again"
        )
    return AntiphaseForCausalLM.from_pretrained(path).eval()


Measure = Callable[[TrainedModel], NDArray[np.float64]]
"""From one model to one number per example."""


class TrainedModels:
    """The trained models of some arms, one per seed and in the same order of seeds.

    Args:
        models: of each arm, by its name.
        measured_as: who measures, with a version. Values are then kept in the folder of each run,
            and not measured again.
    """

    def __init__(
        self, models: Mapping[str, Sequence[TrainedModel]], measured_as: str | None = None
    ) -> None:
        self._models, self._measured_as = models, measured_as

    @classmethod
    def finished(
        cls,
        runs: Mapping[str, Sequence[TrainingRun]],
        root: Path,
        measured_as: str | None = None,
    ) -> "TrainedModels":
        """Return the arms of which every seed is trained.

        Args:
            runs: of each arm, by name, one per seed.
            root: folder of all runs.
            measured_as: as for the class.
        """
        return cls(
            {
                name: [TrainedModel(name, run, run.folder(root)) for run in mine]
                for name, mine in runs.items()
                if all(run.finished(root) for run in mine)
            },
            measured_as,
        )

    def __getitem__(self, arm: Arm) -> Sequence[TrainedModel]:
        return self._models[arm.name]

    def __contains__(self, arm: Arm) -> bool:
        return bool(self._models.get(arm.name))

    def have_weights(self, *arms: Arm) -> bool:
        """Return whether every model of these arms is trained, and its weights are here."""
        return all(
            arm in self and all(has_weights(model.folder / "model") for model in self[arm])
            for arm in arms
        )

    def milestones(self, arm: Arm) -> list[int]:
        """Return the steps at which the weights of every seed were kept."""
        kept = [model.milestones() for model in self[arm]]
        return [step for step in kept[0] if all(step in steps for steps in kept)]

    def values(self, arm: Arm, measure: Measure) -> Values:
        """Measure every seed's model of an arm."""
        return [self._measured(model, measure) for model in self[arm]]

    def gain(self, one: Arm, other: Arm, measure: Measure) -> Values:
        """Return how much higher one arm is than another, paired by seed and example."""
        return difference(self.values(one, measure), self.values(other, measure))

    def _measured(self, model: TrainedModel, measure: Measure) -> NDArray[np.float64]:
        name = measure_name(measure)
        if self._measured_as is None or name is None:
            return measure(model)
        return measured_values(model.folder, f"{self._measured_as}: {name}", lambda: measure(model))


class ListedMeasures(TrainedModels):
    """Lists what a test measures of each arm, and measures nothing.

    Args:
        model: stands for the models of all arms, where a test reads its configuration or losses.

    Attributes:
        asked: measures by the name of their arm.
    """

    def __init__(self, model: TrainedModel) -> None:
        super().__init__({})
        self._model = model
        self.asked: dict[str, list[Measure]] = {}

    def __getitem__(self, arm: Arm) -> Sequence[TrainedModel]:
        return [self._model]

    def __contains__(self, arm: Arm) -> bool:
        return True

    def values(self, arm: Arm, measure: Measure) -> Values:
        """List the measure; return one zero."""
        self.asked.setdefault(arm.name, []).append(measure)
        return [np.zeros(1)]
