"""Accuracy of arms under stress: in conditions harder than those that they were trained in.

Longer sequences than in training, each needle once, and near distractors.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphase.analysis.statistics import Values
from antiphase.experiments.arms import Arm
from antiphase.experiments.experiment import Measurement, Table, bar_chart, interval_row
from antiphase.experiments.model_measurements import NEEDLES_ONCE, answers, pooled
from antiphase.experiments.trained_models import Measure, TrainedModel, TrainedModels
from antiphase.experiments.verdicts import AS_TRAINED, Effect, Gate, learned, room

ONCE = "each needle once"
LONGER_NEAR = "2x length, near distractors"
CONDITIONS: dict[str, dict[str, Any]] = {
    AS_TRAINED: {},
    ONCE: {**NEEDLES_ONCE},
    "2x length": {**NEEDLES_ONCE, "length": 128},
    LONGER_NEAR: {**NEEDLES_ONCE, "length": 128, "near": 1.0},
    "4x length": {**NEEDLES_ONCE, "length": 256},
}
STRESS = "under stress"  # the mean over all conditions but the first

LEARNED = 0.9  # accuracy in the training condition, mean over seeds


def accuracy(model: TrainedModel, condition: str) -> NDArray[np.float64]:
    """Return 1 or 0 per sequence: whether the answer is correct under a condition."""
    return answers(model, **CONDITIONS[condition]).correct


def stress_accuracy(model: TrainedModel) -> NDArray[np.float64]:
    """Return the mean accuracy over the conditions of stress, by index of the sequence."""
    return np.mean([accuracy(model, name) for name in CONDITIONS if name != AS_TRAINED], axis=0)


def stress_gain(one: Arm, other: Arm) -> Effect:
    """Return the key of the accuracy of one arm minus that of another, under stress."""
    return Effect("accuracy", one.name, versus=other.name, condition=STRESS)


def stress_room(arm: str) -> Effect:
    """Return the key of the room that an arm leaves under stress: 1 minus its accuracy."""
    return Effect("1 - accuracy", arm, condition=STRESS)


def contest_gates(one: str, other: str, size: float) -> tuple[Gate, ...]:
    """Return the gates of a contest under stress: both arms learned, the second leaves room."""
    return learned(one), learned(other), room(stress_room(other), size)


def as_trained(models: TrainedModels, arms: Sequence[Arm]) -> dict[Effect, Values]:
    """Measure what the gate `learned` needs: the accuracy of each arm as trained."""
    measure = partial(accuracy, condition=AS_TRAINED)
    return {learned(arm.name).effect: models.values(arm, measure) for arm in arms}


def compare_accuracy(
    models: TrainedModels, arms: Sequence[Arm], pairs: Sequence[tuple[Arm, Arm]]
) -> Measurement:
    """Measure the gains of pairs of arms under stress.

    Args:
        models: the trained arms.
        arms: rows of the table and of the chart.
        pairs: for each pair, the gain of the first arm over the second.

    Returns:
        The effects `stress_gain(one, other)`, those of `contest_gates` for all arms, a table and a
        chart of all arms, and a note about arms that have not learned the task.
    """
    effects = {
        stress_gain(one, other): models.gain(one, other, stress_accuracy) for one, other in pairs
    }
    effects |= as_trained(models, arms)
    effects |= {
        stress_room(arm.name): models.values(arm, lambda model: 1 - stress_accuracy(model))
        for arm in arms
    }
    trained = partial(accuracy, condition=AS_TRAINED)
    rows = [
        interval_row(
            arm.name,
            *(models.values(arm, partial(accuracy, condition=name)) for name in CONDITIONS),
            models.values(arm, stress_accuracy),
        )
        for arm in arms
    ]
    chart = bar_chart(
        "Accuracy",
        "fraction correct",
        {
            AS_TRAINED: {arm.name: models.values(arm, trained) for arm in arms},
            STRESS: {arm.name: models.values(arm, stress_accuracy) for arm in arms},
        },
    )
    table = Table("Accuracy", ["", *CONDITIONS, f"{STRESS}, mean"], rows)
    return Measurement(effects, [table], [chart], unlearned_note(models, arms, trained))


def unlearned_note(models: TrainedModels, arms: Sequence[Arm], measure: Measure) -> list[str]:
    """Return a note that names the arms that have not learned the task, if there are any."""
    unlearned = [arm for arm in arms if pooled(models.values(arm, measure)) < LEARNED]
    if not unlearned:
        return []
    names = "; ".join(arm.name for arm in unlearned)
    return [
        f"Below {LEARNED:.0%} on the task as trained, after {unlearned[0].recipe.steps} steps: "
        f"{names}. A comparison with these is about how fast they learn, not about noise."
    ]
