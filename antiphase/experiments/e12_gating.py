"""Test 12: can a gated layer match it at equal parameters."""

from antiphase.experiments.accuracy_under_stress import contest, gain
from antiphase.experiments.e11_sinks import GATED
from antiphase.experiments.experiment import STANDARD, V1, V2, Experiment, Measured, Shelf
from antiphase.experiments.verdicts import Prediction


class Gating(Experiment):
    """Standard attention with a gate a head."""

    number = 12
    version = 3
    title = "Gating"
    question = "Can a gated multi-head layer match differential attention at equal parameters?"
    arms = (STANDARD, V1, V2, GATED)
    predictions = (
        Prediction("unchaining", gain(GATED, V1), "equal", 0.03, "a gate lets a head give nothing"),
        Prediction(
            "cancelling", gain(GATED, V1), "below", 0.02, "a gate removes no noise in a row"
        ),
    )

    def measure(self, shelf: Shelf) -> Measured:
        return contest(shelf, self.arms, [(GATED, V1), (GATED, V2), (GATED, STANDARD)])
