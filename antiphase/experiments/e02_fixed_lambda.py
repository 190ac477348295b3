"""Test 2: pure cancellation, with lam fixed, as distractors become harder."""

from functools import partial

from antiphase.analysis.statistics import difference, seed_interval
from antiphase.experiments.accuracy_under_stress import (
    CONDITIONS,
    LONGER_NEAR,
    accuracy,
    compare_accuracy,
    contest_gates,
    stress_gain,
)
from antiphase.experiments.arms import V1, Arm, base_recipe
from antiphase.experiments.experiment import Chart, Experiment, Measurement
from antiphase.experiments.trained_models import TrainedModels
from antiphase.experiments.verdicts import AS_TRAINED, Effect, Prediction, learned, room

FIXED = {
    lam: Arm(f"lam = {lam}", base_recipe("diff_v1", attention_options={"lam": lam}))
    for lam in (1.0, 0.8, 0.5, 0.0)
}
GROWTH = Effect(
    "accuracy",
    FIXED[1.0].name,
    versus=FIXED[0.0].name,
    condition=f"{LONGER_NEAR}, minus {AS_TRAINED}",
)
GROWTH_ROOM = Effect("1 - accuracy", FIXED[0.0].name, condition=LONGER_NEAR)


class FixedLambdaTest(Experiment):
    """V1 with lam fixed, against lam learned."""

    version = 4
    arms = (V1, *FIXED.values())
    predictions = (
        Prediction(
            "cancelling",
            stress_gain(V1, FIXED[0.0]),
            "more",
            0.02,
            "no subtraction, no denoising",
            gates=contest_gates(V1.name, FIXED[0.0].name, 0.02),
            primary=True,
        ),
        Prediction(
            "cancelling",
            GROWTH,
            "more",
            0.02,
            "more noise, more to cancel",
            gates=(
                learned(FIXED[1.0].name),
                learned(FIXED[0.0].name),
                room(GROWTH_ROOM, 0.02),
            ),
        ),
        Prediction(
            "unchaining",
            stress_gain(FIXED[0.5], FIXED[1.0]),
            "no worse",
            0.02,
            "weights leave the simplex at any lam above 0; exact cancelling is not needed",
            gates=contest_gates(FIXED[0.5].name, FIXED[1.0].name, 0.02),
            primary=True,
        ),
    )

    def measure(self, models: TrainedModels) -> Measurement:
        pairs = [(V1, FIXED[0.0]), (FIXED[0.5], FIXED[1.0]), (FIXED[1.0], FIXED[0.0])]
        found = compare_accuracy(models, self.arms, pairs)
        hard, easy = (
            models.gain(FIXED[1.0], FIXED[0.0], partial(accuracy, condition=name))
            for name in (LONGER_NEAR, AS_TRAINED)
        )
        found.effects[GROWTH] = difference(hard, easy)
        found.effects[GROWTH_ROOM] = models.values(
            FIXED[0.0], lambda model: 1 - accuracy(model, LONGER_NEAR)
        )
        series = {
            arm.name: [
                (name, seed_interval(models.values(arm, partial(accuracy, condition=name))))
                for name in CONDITIONS
            ]
            for arm in self.arms
        }
        found.figures.append(Chart("Accuracy by condition", "", "accuracy", series))
        return found
