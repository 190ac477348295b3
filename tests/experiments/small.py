"""A lab of seconds: the same tests, on models too small and too briefly trained to learn."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from antiphase.experiments.arms import STANDARD, Arm, TrainingRun, base_recipe
from antiphase.experiments.engine import Job, LocalEngine
from antiphase.experiments.experiment import Experiment, Measurement
from antiphase.experiments.verdicts import Effect, Prediction


@pytest.fixture
def small_lab(monkeypatch):
    def training_run(self: Arm, seed: int) -> TrainingRun:
        recipe = self.recipe
        return TrainingRun(
            recipe.changed(
                seed=seed,
                steps=8,
                batch_size=4,
                warmup=2,
                log_every=4,
                checkpoint_every=4,
                evaluate_every=8,
                evaluate_examples=4,
                milestones=[0, 4, 8] if recipe.milestones else [],
                model={"hidden_size": 32},
            )
        )

    monkeypatch.setattr(Arm, "training_run", training_run)
    monkeypatch.setattr("antiphase.experiments.model_measurements.EXAMPLES", 8)
    monkeypatch.setattr("antiphase.experiments.model_measurements.SEQUENCES", 6)


class InProcess(LocalEngine):
    """An engine without worker processes, each of which would import torch for seconds."""

    def run(self, jobs: list[Job], root: Path) -> Iterator[tuple[Job, str | None]]:
        for job in jobs:
            try:
                job.perform(root)
            except ValueError as error:
                yield job, str(error)
            else:
                yield job, None


class BrokenTest(Experiment):
    """A test with an arm that cannot be trained."""

    predictions = ()
    arms = (Arm("odd", base_recipe("top_k", attention_options={"k": 0})), STANDARD)

    def measure(self, models):
        return Measurement({})


class MistypedTest(Experiment):
    """A test that predicts an effect which it does not measure."""

    arms = (STANDARD,)
    predictions = (
        Prediction(
            "sparsity", Effect("acuracy", "standard"), "more", 0.1, "a typing error", primary=True
        ),
    )

    def measure(self, models):
        return Measurement({Effect("accuracy", "standard"): [[0.5], [0.6]]})
