"""Contests of arms under stress: each needle occurs once, and all distractors are near."""

from collections.abc import Sequence
from functools import partial

from antiphase.analysis.statistics import Values
from antiphase.experiments.arms import STANDARD, Arm
from antiphase.experiments.conditions import AS_TRAINED, CONDITIONS, STRESS
from antiphase.experiments.experiment import Measurement, Table, bar_chart, interval_row
from antiphase.experiments.model_measurements import accuracy, answer_loss, mass
from antiphase.experiments.trained_models import TrainedModels
from antiphase.experiments.verdicts import (
    Effect,
    Gate,
    Kind,
    Prediction,
    learned,
    noise,
    room,
)

SIZE = 0.05  # the smallest difference of accuracies that counts


def gain_of(one: Arm, other: Arm) -> Effect:
    """Return the key of the accuracy of one arm minus that of another, under stress."""
    return Effect("accuracy", one.name, versus=other.name, condition=STRESS.name)


def room_of(arm: Arm) -> Effect:
    """Return the key of the room that an arm leaves under stress: 1 minus its accuracy."""
    return Effect("1 - accuracy", arm.name, condition=STRESS.name)


def contest(
    reading: str, one: Arm, other: Arm, kind: Kind, because: str, *, primary: bool = False
) -> Prediction:
    """Return a prediction about a contest, with its gates: both arms learned, room for an effect.

    A predicted gain needs room above the other arm. "No worse" needs a condition that is hard
    enough to tell arms apart, so there standard attention must leave the room.

    Args:
        reading: that predicts.
        one: the arm that is predicted to have more accuracy than the other, or no less.
        other: the arm that it is compared with.
        kind: of the prediction.
        because: the reading's reason.
        primary: whether this is the test's verdict on the reading.
    """
    baseline = other if kind == "more" else STANDARD
    gates: tuple[Gate, ...] = (
        learned(one.name),
        learned(other.name),
        room(room_of(baseline), SIZE),
    )
    return Prediction(reading, gain_of(one, other), kind, SIZE, because, gates, primary)


def learned_effects(models: TrainedModels, arms: Sequence[Arm]) -> dict[Effect, Values]:
    """Measure what the gate `learned` needs: the accuracy of each arm as trained."""
    measure = partial(accuracy, condition=AS_TRAINED)
    return {learned(arm.name).effect: models.values(arm, measure) for arm in arms}


def noise_effect(models: TrainedModels, standard: Arm) -> dict[Effect, Values]:
    """Measure what the gate `noise` needs: the mass of standard's retrieval heads on I."""
    measure = partial(mass, kind="irrelevant")
    return {noise(STRESS.name).effect: models.values(standard, measure)}


def compare(
    models: TrainedModels, arms: Sequence[Arm], pairs: Sequence[tuple[Arm, Arm]]
) -> Measurement:
    """Measure the gains of pairs of arms under stress.

    Args:
        models: the trained arms.
        arms: rows of the table and of the chart.
        pairs: for each pair, the gain of the first arm over the second.

    Returns:
        The effects `gain_of(one, other)`, those of the gates for all arms, a table and a chart.
    """
    effects = {gain_of(one, other): models.gain(one, other, accuracy) for one, other in pairs}
    effects |= learned_effects(models, arms)
    effects |= {room_of(arm): models.values(arm, lambda model: 1 - accuracy(model)) for arm in arms}
    rows = [
        interval_row(
            arm.name,
            *(models.values(arm, partial(accuracy, condition=c)) for c in CONDITIONS),
            models.values(arm, answer_loss),
        )
        for arm in arms
    ]
    columns = ["", *(c.name for c in CONDITIONS), f"loss, {STRESS.name}"]
    chart = bar_chart(
        "Accuracy",
        "fraction correct",
        {
            c.name: {arm.name: models.values(arm, partial(accuracy, condition=c)) for arm in arms}
            for c in (AS_TRAINED, STRESS)
        },
    )
    return Measurement(effects, [Table("Accuracy", columns, rows)], [chart])
