"""Test 9: whether the finer split into heads makes the difference."""

from antiphase.experiments.arms import STANDARD, V1, Arm
from antiphase.experiments.contests import compare, contest
from antiphase.experiments.experiment import Experiment, Measurement
from antiphase.experiments.trained_models import TrainedModels

HALF_DIM = Arm("standard (half-dim, twice the heads)", "standard", {"half_dim": True})


class FinerHeadsTest(Experiment):
    """Half the head dimension, twice the heads, no subtraction."""

    version = 5
    arms = (STANDARD, V1, HALF_DIM)
    predictions = (
        contest(
            "cancelling",
            V1,
            HALF_DIM,
            "more",
            "heads alone remove no noise",
            primary=True,
            in_noise=True,
        ),
        contest(
            "unchaining", V1, HALF_DIM, "more", "heads alone stay on the simplex", primary=True
        ),
    )

    def measure(self, models: TrainedModels) -> Measurement:
        return compare(models, self.arms, [(V1, HALF_DIM), (HALF_DIM, STANDARD)])
