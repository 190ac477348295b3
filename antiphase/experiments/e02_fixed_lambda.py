"""Test 2: does pure cancellation do it, lam fixed, as distractors grow."""

from antiphase.analysis.statistics import bootstrap, difference
from antiphase.experiments.accuracy_under_stress import STRESS, accuracy, contest, gain
from antiphase.experiments.arms import Arm
from antiphase.experiments.experiment import (
    V1,
    Experiment,
    Measured,
    Picture,
    Shelf,
    base,
)
from antiphase.experiments.verdicts import Prediction

FIXED = {
    lam: Arm(f"lam = {lam}", base("diff_v1", attention_options={"lam": lam}))
    for lam in (1.0, 0.8, 0.5, 0.0)
}
GROWS = "gain of lam = 1.0 over lam = 0.0, near noise minus as trained"


class FixedLambda(Experiment):
    """V1 with lam fixed, against learned."""

    number = 2
    version = 3
    title = "Pure cancellation"
    question = "With lam fixed at 1, 0.8, 0.5 or 0: does subtraction help more as distractors grow?"
    arms = (V1, *FIXED.values())
    predictions = (
        Prediction(
            "cancelling", gain(V1, FIXED[0.0]), "above", 0.02, "no subtraction, no denoising"
        ),
        Prediction("cancelling", GROWS, "above", 0.02, "more noise, more to cancel"),
        Prediction(
            "unchaining",
            gain(FIXED[0.5], FIXED[1.0]),
            "equal",
            0.02,
            "weights leave the simplex at any lam above 0; exact cancelling is not the point",
        ),
    )

    def measure(self, shelf: Shelf) -> Measured:
        found = contest(
            shelf, self.arms, [(V1, FIXED[0.0]), (FIXED[0.5], FIXED[1.0]), (FIXED[1.0], FIXED[0.0])]
        )
        hard, easy = (
            shelf.gain(FIXED[1.0], FIXED[0.0], lambda t, u=under: accuracy(t, u))  # type: ignore[misc]
            for under in ("twice as long, near noise", "as trained")
        )
        found.effects[GROWS] = difference(hard, easy)
        series = {
            arm.name: [
                (under, bootstrap(shelf.values(arm, lambda t, u=under: accuracy(t, u))))  # type: ignore[misc]
                for under in STRESS
            ]
            for arm in self.arms
        }
        found.pictures.append(Picture("Accuracy as it gets harder", "", "accuracy", series))
        return found
