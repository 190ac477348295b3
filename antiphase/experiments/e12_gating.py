"""Test 12: whether a gated layer matches differential attention at equal parameters."""

from antiphase.experiments.accuracy_under_stress import (
    compare_accuracy,
    contest_gates,
    stress_gain,
)
from antiphase.experiments.arms import STANDARD, V1, V2
from antiphase.experiments.e11_sinks import GATED
from antiphase.experiments.experiment import Experiment, Measurement
from antiphase.experiments.trained_models import TrainedModels
from antiphase.experiments.verdicts import Prediction


class GatingTest(Experiment):
    """Standard attention with one gate per head."""

    version = 4
    arms = (STANDARD, V1, V2, GATED)
    predictions = (
        Prediction(
            "unchaining",
            stress_gain(GATED, V1),
            "no worse",
            0.03,
            "a gate lets a head output zero",
            gates=contest_gates(GATED.name, V1.name, 0.03),
            primary=True,
        ),
        Prediction(
            "cancelling",
            stress_gain(V1, GATED),
            "more",
            0.02,
            "a gate removes no noise within a row",
            gates=contest_gates(V1.name, GATED.name, 0.02),
            primary=True,
        ),
    )

    def measure(self, models: TrainedModels) -> Measurement:
        pairs = [(GATED, V1), (V1, GATED), (GATED, V2), (GATED, STANDARD)]
        return compare_accuracy(models, self.arms, pairs)
