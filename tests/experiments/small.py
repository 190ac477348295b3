"""A lab of seconds: the same tests, on models too small and too briefly trained to learn."""

from pathlib import Path
from typing import Any

import pytest

from antiphase.experiments.arms import STANDARD, TOP_K, Arm, Settings, TrainingRun, arm_recipe
from antiphase.experiments.contests import compare, contest
from antiphase.experiments.engine import Ended, Job
from antiphase.experiments.experiment import Experiment, Measurement
from antiphase.experiments.plans import Plan
from antiphase.experiments.verdicts import Effect, Prediction
from antiphase.training import Recipe

TASK_OPTIONS = {
    "length": 40,
    "keys": 4,
    "values": 4,
    "fillers": 4,
    "decoys": 4,
    "needles": 2,
    "repeats": 2,
    "noise": 1.0,
    "near": 0.5,
}
RECIPE = Recipe().changed(
    task="composite_needle",
    task_options=TASK_OPTIONS,
    model={"hidden_size": 32},
    schedule="wsd",
    criterion=0.99,
    steps=8,
    batch_size=4,
    warmup=2,
    log_every=4,
    checkpoint_every=4,
    evaluate_every=4,
    evaluate_examples=4,
    milestones=[0, 4, 8],
)
SMALL = Plan("small", RECIPE, (1, 5, 7, 15), (0, 1))


def small_run(arm: Arm, seed: int = 0, **changes: Any) -> TrainingRun:
    """Return a run of an arm as the small plan has it."""
    settings = Settings(RECIPE.lr, options={k: v[1] for k, v in arm.sweep.items()})
    return TrainingRun(arm_recipe(RECIPE, arm, settings).changed(seed=seed, **changes))


@pytest.fixture
def few_examples(monkeypatch):
    """Measure on a few examples only."""
    monkeypatch.setattr("antiphase.experiments.model_measurements.EXAMPLES", 8)
    monkeypatch.setattr("antiphase.experiments.model_measurements.SEQUENCES", 6)


class InProcess:
    """An engine without worker processes, each of which would import torch for seconds."""

    workers = 1

    def __init__(self) -> None:
        self.waiting: list[tuple[Job, Path]] = []

    def submit(self, job: Job, root: Path) -> None:
        self.waiting.append((job, root))

    def progress(self) -> list[Job]:
        return []

    def result(self, timeout: float) -> Ended | None:
        if not self.waiting:
            return None
        job, root = self.waiting.pop(0)
        return job, self.perform(job, root)

    def perform(self, job: Job, root: Path) -> str | None:
        try:
            job.perform(root)
        except ValueError as error:
            return str(error)
        return None

    def cancel(self) -> None:
        self.waiting.clear()


class OneArmTest(Experiment):
    """A test that measures one arm and predicts nothing."""

    arms = (STANDARD,)
    predictions = ()

    def measure(self, models):
        return compare(models, self.arms, [])


class TwoArmsTest(Experiment):
    """A contest of two arms, one of them with an option that tuning chooses."""

    arms = (STANDARD, TOP_K)
    predictions = (contest("sparsity", TOP_K, STANDARD, "more", "sparser", primary=True),)

    def measure(self, models):
        return compare(models, self.arms, [(TOP_K, STANDARD)])


class SameNameTest(Experiment):
    """A test whose arm has the name of another one."""

    arms = (Arm(STANDARD.name, "gated"),)
    predictions = ()

    def measure(self, models):
        return Measurement({})


class BrokenTest(Experiment):
    """A test with an arm that cannot be trained."""

    predictions = ()
    arms = (Arm("odd", "top_k", {"k": 0}), STANDARD)

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
