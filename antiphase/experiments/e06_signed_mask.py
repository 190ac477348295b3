"""Test 6: is a learned sign on one softmax enough."""

from antiphase.experiments.accuracy_under_stress import contest, gain
from antiphase.experiments.arms import Arm
from antiphase.experiments.experiment import STANDARD, V1, Experiment, Measured, Shelf, base
from antiphase.experiments.verdicts import Prediction

SIGNED = Arm("signed mask", base("signed_mask"))


class SignedMask(Experiment):
    """One softmax map times a learned signed factor."""

    number = 6
    version = 3
    title = "Signed mask"
    question = "Does one softmax with a learned sign do what the difference of two does?"
    arms = (STANDARD, V1, SIGNED)
    predictions = (
        Prediction("unchaining", gain(SIGNED, V1), "equal", 0.03, "leaving the simplex is enough"),
        Prediction("sparsity", gain(SIGNED, V1), "equal", 0.03, "a sparse signed map is enough"),
        Prediction("cancelling", gain(SIGNED, V1), "below", 0.02, "a sign cancels no common noise"),
    )

    def measure(self, shelf: Shelf) -> Measured:
        return contest(shelf, self.arms, [(SIGNED, V1), (V1, STANDARD)])
