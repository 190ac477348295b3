"""Test 9: whether the finer split into heads makes the difference."""

from antiphase.experiments.arms import STANDARD, V1, Arm
from antiphase.experiments.conditions import SYNTHETIC_CONDITIONS
from antiphase.experiments.contests import compare_synthetic, synthetic_contest
from antiphase.experiments.experiment import Experiment, Measurement
from antiphase.experiments.trained_models import TrainedModels

HALF_DIM = Arm("standard (half-dim, twice the heads)", "standard", {"half_dim": True})


class FinerHeadsTest(Experiment):
    """Half the head dimension, twice the heads, no subtraction."""

    version = 6
    conditions = SYNTHETIC_CONDITIONS
    arms = (STANDARD, V1, HALF_DIM)
    predictions = (
        synthetic_contest(
            "unchaining",
            V1,
            HALF_DIM,
            "more",
            "heads alone stay on the simplex (cancelling predicts the same: they remove no noise)",
            primary=True,
        ),
    )

    def measure(self, models: TrainedModels) -> Measurement:
        return compare_synthetic(models, self.arms, [(V1, HALF_DIM), (HALF_DIM, STANDARD)])
