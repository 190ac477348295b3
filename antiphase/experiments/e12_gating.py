"""Test 12: whether a gated layer matches differential attention at equal parameters."""

from antiphase.experiments.accuracy_under_stress import compare_accuracy, stress_gain
from antiphase.experiments.arms import STANDARD, V1, V2
from antiphase.experiments.e11_sinks import GATED
from antiphase.experiments.experiment import Experiment, Measurement
from antiphase.experiments.trained_models import TrainedModels
from antiphase.experiments.verdicts import Prediction

GAIN = stress_gain(GATED, V1)


class GatingTest(Experiment):
    """Standard attention with one gate per head."""

    version = 3
    arms = (STANDARD, V1, V2, GATED)
    predictions = (
        Prediction("unchaining", GAIN, "equal", 0.03, "a gate lets a head output zero"),
        Prediction("cancelling", GAIN, "below", 0.02, "a gate removes no noise within a row"),
    )

    def measure(self, models: TrainedModels) -> Measurement:
        pairs = [(GATED, V1), (GATED, V2), (GATED, STANDARD)]
        return compare_accuracy(models, self.arms, pairs)
