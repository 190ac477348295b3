"""Test 4: standard attention over the k largest scores, since any sparse attention might do."""

from functools import partial

import numpy as np

from antiphase.experiments.accuracy_under_stress import (
    STRESS,
    accuracy,
    compare_accuracy,
    contest_gates,
    stress_accuracy,
    stress_room,
)
from antiphase.experiments.arms import STANDARD, V1, Arm, base_recipe
from antiphase.experiments.experiment import Experiment, Measurement
from antiphase.experiments.model_measurements import NEEDLES_ONCE, answers
from antiphase.experiments.trained_models import TrainedModels
from antiphase.experiments.verdicts import AS_TRAINED, Effect, Prediction, learned

SWEEP = [Arm(f"top {k}", base_recipe("top_k", attention_options={"k": k})) for k in (2, 4, 8, 16)]
BEST = "best top-k"
BEST_GAIN = Effect("accuracy", BEST, versus=V1.name, condition=STRESS)
BEST_LOSS = Effect("accuracy", V1.name, versus=BEST, condition=STRESS)


class TopKTest(Experiment):
    """Top-k attention, k swept; the best k is chosen on other examples than it is scored on."""

    version = 4
    arms = (STANDARD, V1, *SWEEP)
    predictions = (
        Prediction(
            "sparsity",
            BEST_GAIN,
            "no worse",
            0.03,
            "any sparse attention would do",
            gates=contest_gates(BEST, V1.name, 0.03),
            primary=True,
        ),
        Prediction(
            "cancelling",
            BEST_LOSS,
            "more",
            0.02,
            "sparsity without subtraction keeps noise",
            gates=contest_gates(V1.name, BEST, 0.02),
            primary=True,
        ),
    )

    def measure(self, models: TrainedModels) -> Measurement:
        found = compare_accuracy(models, self.arms, [(V1, STANDARD)])
        best = max(SWEEP, key=lambda arm: _validation_accuracy(models, arm))
        found.effects |= {
            BEST_GAIN: models.gain(best, V1, stress_accuracy),
            BEST_LOSS: models.gain(V1, best, stress_accuracy),
            stress_room(BEST): models.values(best, lambda model: 1 - stress_accuracy(model)),
            learned(BEST).effect: models.values(best, partial(accuracy, condition=AS_TRAINED)),
        }
        return found


def _validation_accuracy(models: TrainedModels, arm: Arm) -> float:
    scores = [
        answers(model, split="validation", **NEEDLES_ONCE, length=128).correct.mean()
        for model in models[arm]
    ]
    return float(np.mean(scores))
