"""Test 8: the 2x2 of head norm and subtraction."""

from antiphase.analysis.statistics import Values
from antiphase.experiments.arms import STANDARD, STANDARD_NORM, V1, V1_NO_NORM
from antiphase.experiments.conditions import STRESS
from antiphase.experiments.contests import SIZE, compare, contest, gain_of, room_of
from antiphase.experiments.experiment import Experiment, Measurement
from antiphase.experiments.trained_models import TrainedModels
from antiphase.experiments.verdicts import Effect, Prediction, learned, room

FACTORS = {"subtraction": "with minus without subtraction", "head norm": "with minus without norm"}
SUBTRACTION, NORM = (
    Effect("accuracy", f"{what}, mean of the two other cells", condition=STRESS.name)
    for what in FACTORS.values()
)
CELLS = (STANDARD, STANDARD_NORM, V1_NO_NORM, V1)


class NormTest(Experiment):
    """Standard and V1, each with and without the head norm."""

    version = 5
    arms = CELLS
    predictions = (
        Prediction(
            "cancelling",
            SUBTRACTION,
            "more",
            SIZE,
            "the subtraction removes noise, with a norm or without",
            gates=(
                *(learned(arm.name) for arm in CELLS),
                room(room_of(STANDARD), SIZE),
                room(room_of(STANDARD_NORM), SIZE),
            ),
            primary=True,
        ),
        contest("cancelling", V1, STANDARD_NORM, "more", "the norm alone removes no noise"),
        contest(
            "unchaining",
            V1_NO_NORM,
            STANDARD,
            "more",
            "weights that leave the simplex help without any norm",
            primary=True,
        ),
    )

    def measure(self, models: TrainedModels) -> Measurement:
        pairs = [
            (V1, STANDARD_NORM),
            (V1_NO_NORM, STANDARD),
            (V1, V1_NO_NORM),
            (STANDARD_NORM, STANDARD),
            (V1, STANDARD),
        ]
        found = compare(models, self.arms, pairs)
        gains = found.effects
        found.effects[SUBTRACTION] = _mean(
            gains[gain_of(V1, STANDARD_NORM)], gains[gain_of(V1_NO_NORM, STANDARD)]
        )
        found.effects[NORM] = _mean(
            gains[gain_of(V1, V1_NO_NORM)], gains[gain_of(STANDARD_NORM, STANDARD)]
        )
        return found


def _mean(one: Values, other: Values) -> Values:
    return [(a + b) / 2 for a, b in zip(one, other, strict=True)]
