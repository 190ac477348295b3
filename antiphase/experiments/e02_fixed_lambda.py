"""Test 2: pure cancellation, with lam fixed, as distractors become harder."""

from functools import partial

from antiphase.analysis.statistics import difference, seed_interval
from antiphase.experiments.arms import V1, Arm
from antiphase.experiments.conditions import AS_TRAINED, CONDITIONS, STRESS
from antiphase.experiments.contests import SIZE, compare, contest, room_of
from antiphase.experiments.experiment import Chart, Experiment, Measurement
from antiphase.experiments.model_measurements import accuracy
from antiphase.experiments.trained_models import TrainedModels
from antiphase.experiments.verdicts import Effect, Prediction, learned, room

FIXED = {lam: Arm(f"lam = {lam}", "diff_v1", {"lam": lam}) for lam in (1.0, 0.8, 0.5, 0.0)}
GROWTH = Effect(
    "accuracy",
    FIXED[1.0].name,
    versus=FIXED[0.0].name,
    condition=f"{STRESS.name}, minus {AS_TRAINED.name}",
)


class FixedLambdaTest(Experiment):
    """V1 with lam fixed, against lam learned."""

    version = 5
    arms = (V1, *FIXED.values())
    predictions = (
        contest("cancelling", V1, FIXED[0.0], "more", "no subtraction, no denoising", primary=True),
        Prediction(
            "cancelling",
            GROWTH,
            "more",
            SIZE,
            "more noise, more to cancel",
            gates=(
                learned(FIXED[1.0].name),
                learned(FIXED[0.0].name),
                room(room_of(FIXED[0.0]), SIZE),
            ),
        ),
        contest(
            "unchaining",
            FIXED[0.5],
            FIXED[1.0],
            "no worse",
            "weights leave the simplex at any lam above 0; exact cancelling is not needed",
            primary=True,
        ),
    )

    def measure(self, models: TrainedModels) -> Measurement:
        pairs = [(V1, FIXED[0.0]), (FIXED[0.5], FIXED[1.0]), (FIXED[1.0], FIXED[0.0])]
        found = compare(models, self.arms, pairs)
        hard, easy = (
            models.gain(FIXED[1.0], FIXED[0.0], partial(accuracy, condition=condition))
            for condition in (STRESS, AS_TRAINED)
        )
        found.effects[GROWTH] = difference(hard, easy)
        series = {
            arm.name: [
                (c.name, seed_interval(models.values(arm, partial(accuracy, condition=c))))
                for c in CONDITIONS
            ]
            for arm in self.arms
        }
        found.figures.append(Chart("Accuracy by condition", "", "accuracy", series))
        return found
