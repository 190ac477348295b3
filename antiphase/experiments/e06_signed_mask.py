"""Test 6: whether a learned sign on one softmax is enough."""

from antiphase.experiments.accuracy_under_stress import (
    compare_accuracy,
    contest_gates,
    stress_gain,
)
from antiphase.experiments.arms import STANDARD, V1, Arm, base_recipe
from antiphase.experiments.experiment import Experiment, Measurement
from antiphase.experiments.trained_models import TrainedModels
from antiphase.experiments.verdicts import Prediction

SIGNED = Arm("signed mask", base_recipe("signed_mask"))
GAIN = stress_gain(SIGNED, V1)
GATES = contest_gates(SIGNED.name, V1.name, 0.03)


class SignedMaskTest(Experiment):
    """One softmax map times a learned signed factor."""

    version = 4
    arms = (STANDARD, V1, SIGNED)
    predictions = (
        Prediction(
            "unchaining", GAIN, "no worse", 0.03, "leaving the simplex is enough", GATES, True
        ),
        Prediction(
            "sparsity", GAIN, "no worse", 0.03, "a sparse signed map is enough", GATES, True
        ),
        Prediction(
            "cancelling",
            stress_gain(V1, SIGNED),
            "more",
            0.02,
            "a sign cancels no common noise",
            gates=contest_gates(V1.name, SIGNED.name, 0.02),
            primary=True,
        ),
    )

    def measure(self, models: TrainedModels) -> Measurement:
        return compare_accuracy(models, self.arms, [(SIGNED, V1), (V1, SIGNED), (V1, STANDARD)])
