"""Test 8: is it the head norm."""

from antiphase.experiments.accuracy_under_stress import contest, gain
from antiphase.experiments.arms import Arm
from antiphase.experiments.experiment import STANDARD, V1, Experiment, Measured, Shelf, base
from antiphase.experiments.verdicts import Prediction

SCALAR = Arm("V1, one scalar", base("diff_v1", attention_options={"head_norm": "scalar"}))
NONE = Arm("V1, no norm", base("diff_v1", attention_options={"head_norm": "none"}))
NORMED = Arm("standard, head norm", base("standard", attention_options={"head_norm": "rms"}))


class Norm(Experiment):
    """Head norm, one scalar, none; and standard attention with the head norm."""

    number = 8
    version = 3
    title = "Head norm"
    question = "Does the head norm make the difference, rather than the subtraction?"
    arms = (STANDARD, V1, SCALAR, NONE, NORMED)
    predictions = (
        Prediction(
            "cancelling", gain(V1, NORMED), "above", 0.02, "the norm alone removes no noise"
        ),
        Prediction(
            "cancelling", gain(SCALAR, V1), "equal", 0.03, "the subtraction works without the norm"
        ),
    )

    def measure(self, shelf: Shelf) -> Measured:
        pairs = [(V1, NORMED), (SCALAR, V1), (NONE, V1), (NORMED, STANDARD)]
        pairs += [(SCALAR, STANDARD), (NONE, STANDARD)]
        return contest(shelf, self.arms, pairs)
