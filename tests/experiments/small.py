"""A lab of seconds: the same tests, on models too small and too briefly trained to learn."""

import pytest

from antiphase.experiments.arms import Arm, Job


@pytest.fixture
def small_lab(monkeypatch):
    def job(self: Arm, seed: int) -> Job:
        recipe = self.recipe
        return Job(
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

    monkeypatch.setattr(Arm, "job", job)
    monkeypatch.setattr("antiphase.experiments.model_measurements.EXAMPLES", 8)
