"""Test 9: whether the finer split into heads makes the difference."""

from antiphase.experiments.accuracy_under_stress import compare_accuracy, stress_gain
from antiphase.experiments.arms import STANDARD, V1, Arm, base_recipe
from antiphase.experiments.experiment import Experiment, Measurement
from antiphase.experiments.trained_models import TrainedModels
from antiphase.experiments.verdicts import Prediction

HALF_DIM = Arm(
    "standard (half-dim, twice the heads)",
    base_recipe("standard", attention_options={"half_dim": True}),
)
GAIN = stress_gain(V1, HALF_DIM)


class FinerHeadsTest(Experiment):
    """Half the head dimension, twice the heads, no subtraction."""

    version = 3
    arms = (STANDARD, V1, HALF_DIM)
    predictions = (
        Prediction("cancelling", GAIN, "above", 0.02, "heads alone subtract nothing"),
        Prediction("unchaining", GAIN, "above", 0.02, "heads alone stay on the simplex"),
    )

    def measure(self, models: TrainedModels) -> Measurement:
        return compare_accuracy(models, self.arms, [(V1, HALF_DIM), (HALF_DIM, STANDARD)])
