"""Test 4: standard attention over the k largest scores, since any sparse attention might do."""

import numpy as np

from antiphase.experiments.accuracy_under_stress import STRESS, compare_accuracy, stress_accuracy
from antiphase.experiments.arms import STANDARD, V1, Arm, base_recipe
from antiphase.experiments.experiment import Experiment, Measurement
from antiphase.experiments.model_measurements import NEEDLES_ONCE, answers
from antiphase.experiments.trained_models import TrainedModels
from antiphase.experiments.verdicts import Effect, Prediction

SWEEP = [Arm(f"top {k}", base_recipe("top_k", attention_options={"k": k})) for k in (2, 4, 8, 16)]
BEST_GAIN = Effect("accuracy", "best top-k", versus=V1.name, condition=STRESS)


class TopKTest(Experiment):
    """Top-k attention, k swept; the best k is chosen on other examples than it is scored on."""

    version = 3
    arms = (STANDARD, V1, *SWEEP)
    predictions = (
        Prediction("sparsity", BEST_GAIN, "equal", 0.03, "any sparse attention would do"),
        Prediction(
            "cancelling", BEST_GAIN, "below", 0.02, "sparsity without subtraction keeps noise"
        ),
    )

    def measure(self, models: TrainedModels) -> Measurement:
        found = compare_accuracy(models, self.arms, [(V1, STANDARD)])
        best = max(SWEEP, key=lambda arm: _validation_accuracy(models, arm))
        found.effects[BEST_GAIN] = models.gain(best, V1, stress_accuracy)
        return found


def _validation_accuracy(models: TrainedModels, arm: Arm) -> float:
    scores = [
        answers(model, split="validation", **NEEDLES_ONCE, length=128).correct.mean()
        for model in models[arm]
    ]
    return float(np.mean(scores))
