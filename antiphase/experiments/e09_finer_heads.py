"""Test 9: is it the finer split into heads."""

from antiphase.experiments.accuracy_under_stress import contest, gain
from antiphase.experiments.arms import Arm
from antiphase.experiments.experiment import STANDARD, V1, Experiment, Measured, Shelf, base
from antiphase.experiments.verdicts import Prediction

HALF = Arm("half-dim, twice the heads", base("standard", attention_options={"half_dim": True}))


class FinerHeads(Experiment):
    """Half the width, twice the heads, no subtraction."""

    number = 9
    version = 3
    title = "Finer heads"
    question = "Do more, narrower heads do as well without subtraction?"
    arms = (STANDARD, V1, HALF)
    predictions = (
        Prediction("cancelling", gain(V1, HALF), "above", 0.02, "heads alone subtract nothing"),
        Prediction("unchaining", gain(V1, HALF), "above", 0.02, "heads alone stay on the simplex"),
    )

    def measure(self, shelf: Shelf) -> Measured:
        return contest(shelf, self.arms, [(V1, HALF), (HALF, STANDARD)])
