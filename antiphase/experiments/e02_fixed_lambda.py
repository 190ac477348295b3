"""Test 2: pure cancellation, with lam fixed, as distractors become nearer."""

from functools import partial

import numpy as np

from antiphase.analysis.statistics import difference
from antiphase.experiments.arms import STANDARD, V1, Arm
from antiphase.experiments.conditions import CONDITIONS, NEAR, STRESS, grid
from antiphase.experiments.contests import accuracy_chart, compare, contest
from antiphase.experiments.e07_grid import SIZE
from antiphase.experiments.experiment import Experiment, Measurement, Table, interval_row
from antiphase.experiments.model_measurements import Numbers, answer_loss
from antiphase.experiments.trained_models import TrainedModel, TrainedModels
from antiphase.experiments.verdicts import Effect, Prediction, learned, noise, room
from antiphase.training.callbacks import lambdas

FIXED = {lam: Arm(f"lam = {lam}", "diff_v1", {"lam": lam}) for lam in (1.0, 0.8, 0.5, 0.0)}
AT_STRESS = {near: condition for (_, near), condition in grid((STRESS.length,), [*NEAR]).items()}
GROWTH = Effect(
    "loss",
    FIXED[0.0].name,
    versus=FIXED[1.0].name,
    condition=f"near minus far distractors, {STRESS.length:g}x length",
)
LOSS = Effect("loss", FIXED[0.0].name, condition=STRESS.name)


class FixedLambdaTest(Experiment):
    """V1 with lam fixed, against lam learned."""

    version = 6
    arms = (STANDARD, V1, *FIXED.values())
    conditions = tuple(dict.fromkeys((*CONDITIONS, *AT_STRESS.values())))
    predictions = (
        contest(
            "cancelling",
            V1,
            FIXED[0.0],
            "more",
            "no subtraction, no denoising",
            primary=True,
            in_noise=True,
        ),
        Prediction(
            "cancelling",
            GROWTH,
            "more",
            SIZE,
            "more noise, more to cancel",
            gates=(
                learned(FIXED[1.0].name),
                learned(FIXED[0.0].name),
                room(LOSS, SIZE),
                noise(STRESS.name),
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
        pairs = [
            (V1, FIXED[0.0]),
            (FIXED[0.5], FIXED[1.0]),
            *((arm, FIXED[0.0]) for lam, arm in FIXED.items() if lam),
            *((V1, arm) for lam, arm in FIXED.items() if lam),
        ]
        found = compare(models, self.arms, pairs)
        near, far = (
            models.gain(FIXED[0.0], FIXED[1.0], partial(answer_loss, condition=AT_STRESS[name]))
            for name in ("near", "far")
        )
        found.effects[GROWTH] = difference(near, far)
        found.effects[LOSS] = models.values(FIXED[0.0], answer_loss)
        title = f"Accuracy as distractors become nearer, {STRESS.length:g}x length"
        found.figures.append(accuracy_chart(title, "distractors", models, self.arms, AT_STRESS))
        found.tables.append(_learned_lambda(models))
        return found


def layer_lambda(model: TrainedModel, layer: int, step: int | None = None) -> Numbers:
    """Return lam of a layer at the end of a run, or at a milestone."""
    return np.array([lambdas(model.load(step))[f"lam_{layer}"]])


def _learned_lambda(models: TrainedModels) -> Table:
    """Return V1's lam of each layer."""
    rows = [
        interval_row(f"layer {layer}", models.values(V1, partial(layer_lambda, layer=layer)))
        for layer in range(models[V1][0].config.num_hidden_layers)
    ]
    return Table("lam that V1 has learned", ["", "lam"], rows)
