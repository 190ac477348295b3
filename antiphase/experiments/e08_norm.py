"""Test 8: whether the head norm makes the difference."""

from antiphase.experiments.accuracy_under_stress import (
    compare_accuracy,
    contest_gates,
    stress_gain,
)
from antiphase.experiments.arms import STANDARD, V1, Arm, base_recipe
from antiphase.experiments.experiment import Experiment, Measurement
from antiphase.experiments.trained_models import TrainedModels
from antiphase.experiments.verdicts import Prediction

SCALAR = Arm("V1 (one scalar)", base_recipe("diff_v1", attention_options={"head_norm": "scalar"}))
NO_NORM = Arm("V1 (no norm)", base_recipe("diff_v1", attention_options={"head_norm": "none"}))
NORMED = Arm(
    "standard (head norm)", base_recipe("standard", attention_options={"head_norm": "rms"})
)


class NormTest(Experiment):
    """Head norm, one scalar, none; and standard attention with the head norm."""

    version = 4
    arms = (STANDARD, V1, SCALAR, NO_NORM, NORMED)
    predictions = (
        Prediction(
            "cancelling",
            stress_gain(V1, NORMED),
            "more",
            0.02,
            "the norm alone removes no noise",
            gates=contest_gates(V1.name, NORMED.name, 0.02),
            primary=True,
        ),
        Prediction(
            "cancelling",
            stress_gain(SCALAR, V1),
            "no worse",
            0.03,
            "the subtraction works without the norm",
            gates=contest_gates(SCALAR.name, V1.name, 0.03),
        ),
    )

    def measure(self, models: TrainedModels) -> Measurement:
        pairs = [(V1, NORMED), (SCALAR, V1), (NO_NORM, V1), (NORMED, STANDARD)]
        pairs += [(SCALAR, STANDARD), (NO_NORM, STANDARD)]
        return compare_accuracy(models, self.arms, pairs)
