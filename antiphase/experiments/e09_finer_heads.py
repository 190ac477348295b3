"""Test 9: whether the finer split into heads makes the difference."""

from antiphase.experiments.accuracy_under_stress import (
    compare_accuracy,
    contest_gates,
    stress_gain,
)
from antiphase.experiments.arms import STANDARD, V1, Arm, base_recipe
from antiphase.experiments.experiment import Experiment, Measurement
from antiphase.experiments.trained_models import TrainedModels
from antiphase.experiments.verdicts import Prediction

HALF_DIM = Arm(
    "standard (half-dim, twice the heads)",
    base_recipe("standard", attention_options={"half_dim": True}),
)
GAIN = stress_gain(V1, HALF_DIM)
GATES = contest_gates(V1.name, HALF_DIM.name, 0.02)


class FinerHeadsTest(Experiment):
    """Half the head dimension, twice the heads, no subtraction."""

    version = 4
    arms = (STANDARD, V1, HALF_DIM)
    predictions = (
        Prediction("cancelling", GAIN, "more", 0.02, "heads alone subtract nothing", GATES, True),
        Prediction(
            "unchaining", GAIN, "more", 0.02, "heads alone stay on the simplex", GATES, True
        ),
    )

    def measure(self, models: TrainedModels) -> Measurement:
        return compare_accuracy(models, self.arms, [(V1, HALF_DIM), (HALF_DIM, STANDARD)])
