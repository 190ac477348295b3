"""Test 4: would any sparse attention do; Standard attention over the k largest scores."""

import numpy as np

from antiphase.experiments.accuracy_under_stress import contest, under_stress
from antiphase.experiments.arms import Arm
from antiphase.experiments.experiment import STANDARD, V1, Experiment, Measured, Shelf, base
from antiphase.experiments.model_measurements import HARD, answers
from antiphase.experiments.verdicts import Prediction

SWEPT = [Arm(f"top {k}", base("top_k", attention_options={"k": k})) for k in (2, 4, 8, 16)]
EFFECT = "accuracy under stress, best top-k minus V1"


class TopK(Experiment):
    """Top-k attention, k swept; the best k is chosen on other examples than it is scored on."""

    number = 4
    version = 3
    title = "Top-k"
    question = "Does standard attention with top-k do as well as V1?"
    arms = (STANDARD, V1, *SWEPT)
    predictions = (
        Prediction("sparsity", EFFECT, "equal", 0.03, "any sparse attention would do"),
        Prediction("cancelling", EFFECT, "below", 0.02, "sparsity without subtraction keeps noise"),
    )

    def measure(self, shelf: Shelf) -> Measured:
        found = contest(shelf, self.arms, [(V1, STANDARD)])
        best = max(SWEPT, key=lambda arm: _chosen_by(shelf, arm))
        found.effects[EFFECT] = shelf.gain(best, V1, under_stress)
        return found


def _chosen_by(shelf: Shelf, arm: Arm) -> float:
    scores = [answers(t, split="validation", **HARD, length=128).right.mean() for t in shelf[arm]]
    return float(np.mean(scores))
