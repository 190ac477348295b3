"""Test 12: whether a gated layer matches differential attention at equal parameters."""

from antiphase.experiments.arms import GATED, STANDARD, V1, V2
from antiphase.experiments.contests import compare, contest
from antiphase.experiments.experiment import Experiment, Measurement
from antiphase.experiments.trained_models import TrainedModels


class GatingTest(Experiment):
    """Standard attention with one gate per head."""

    version = 5
    arms = (STANDARD, V1, V2, GATED)
    predictions = (
        contest(
            "unchaining",
            GATED,
            V1,
            "no worse",
            "a gate lets a head output zero, too",
            primary=True,
        ),
        contest(
            "cancelling",
            V1,
            GATED,
            "more",
            "a gate scales a whole row and removes no noise within it",
            primary=True,
        ),
    )

    def measure(self, models: TrainedModels) -> Measurement:
        pairs = [(GATED, V1), (V1, GATED), (GATED, V2), (GATED, STANDARD)]
        return compare(models, self.arms, pairs)
