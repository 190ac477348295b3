"""Test 6: whether a learned sign on one softmax is enough."""

from antiphase.experiments.accuracy_under_stress import compare_accuracy, stress_gain
from antiphase.experiments.arms import STANDARD, V1, Arm, base_recipe
from antiphase.experiments.experiment import Experiment, Measurement
from antiphase.experiments.trained_models import TrainedModels
from antiphase.experiments.verdicts import Prediction

SIGNED = Arm("signed mask", base_recipe("signed_mask"))
GAIN = stress_gain(SIGNED, V1)


class SignedMaskTest(Experiment):
    """One softmax map times a learned signed factor."""

    version = 3
    arms = (STANDARD, V1, SIGNED)
    predictions = (
        Prediction("unchaining", GAIN, "equal", 0.03, "leaving the simplex is enough"),
        Prediction("sparsity", GAIN, "equal", 0.03, "a sparse signed map is enough"),
        Prediction("cancelling", GAIN, "below", 0.02, "a sign cancels no common noise"),
    )

    def measure(self, models: TrainedModels) -> Measurement:
        return compare_accuracy(models, self.arms, [(SIGNED, V1), (V1, STANDARD)])
