"""Contests of arms under stress.

Stress is a condition that is harder than training: by default each needle occurs once, and all
distractors are near. Tests of other tasks name their own.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from antiphase.analysis.statistics import Values, seed_interval
from antiphase.experiments.arms import FOREIGN_NOISE, STANDARD, V1, Arm, is_standard
from antiphase.experiments.conditions import (
    AS_TRAINED,
    CONDITIONS,
    STRESS,
    SYNTHETIC_CONDITIONS,
    SYNTHETIC_STRESS,
    Condition,
)
from antiphase.experiments.experiment import Chart, Measurement, Table, bar_chart, interval_row
from antiphase.experiments.model_measurements import accuracy, answer_loss, mass
from antiphase.experiments.trained_models import Measure, TrainedModels
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
SYNTHETIC_SIZE = 0.03  # in the synthetic study, with more seeds and a condition with less room


def gain_of(one: Arm, other: Arm, stress: Condition = STRESS) -> Effect:
    """Return the key of the accuracy of one arm minus that of another, under stress."""
    return Effect("accuracy", one.name, versus=other.name, condition=stress.name)


def room_of(arm: Arm, stress: Condition = STRESS) -> Effect:
    """Return the key of the room that an arm leaves under stress: 1 minus its accuracy."""
    return Effect("1 - accuracy", arm.name, condition=stress.name)


def contest(
    reading: str,
    one: Arm,
    other: Arm,
    kind: Kind,
    because: str,
    *,
    primary: bool = False,
    in_noise: bool = False,
    standard: Arm = STANDARD,
    stress: Condition = STRESS,
    size: float = SIZE,
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
        in_noise: whether the reason speaks of attention noise, so that there has to be some.
        standard: standard attention, trained on the same task.
        stress: the condition in which they are compared.
        size: the smallest difference of accuracies that counts.
    """
    baseline = other if kind == "more" else standard
    gates: tuple[Gate, ...] = (
        learned(one.name),
        learned(other.name),
        room(room_of(baseline, stress), size),
        *((noise(stress.name, standard.name),) if in_noise else ()),
    )
    return Prediction(reading, gain_of(one, other, stress), kind, size, because, gates, primary)


synthetic_contest = partial(contest, stress=SYNTHETIC_STRESS, size=SYNTHETIC_SIZE)
"""`contest` as the synthetic study has it."""


def noise_contests(
    arms: Mapping[str, Arm], stress: Condition, because: str, size: float = SIZE
) -> tuple[Prediction, ...]:
    """Return what two readings say of a task with noise: must the second map share the noise?

    Args:
        arms: standard attention, V1 and foreign noise, by their usual names.
        stress: the condition in which they are compared.
        because: what the noise is.
        size: the smallest difference of accuracies that counts.
    """
    standard, v1, foreign = (arms[arm.name] for arm in (STANDARD, V1, FOREIGN_NOISE))
    under = partial(contest, standard=standard, stress=stress, size=size)
    in_noise = partial(under, "cancelling", v1, kind="more", in_noise=True)
    return (
        in_noise(standard, because=f"{because}; it is subtracted", primary=True),
        in_noise(foreign, because="another sequence's map has other noise"),
        under(
            "unchaining",
            foreign,
            v1,
            "no worse",
            "any second map leaves the simplex",
            primary=True,
        ),
    )


def noise_pairs(arms: Mapping[str, Arm]) -> list[tuple[Arm, Arm]]:
    """Return the pairs of `noise_contests`, and every other arm against standard attention."""
    standard, v1, foreign = (arms[arm.name] for arm in (STANDARD, V1, FOREIGN_NOISE))
    others = [arm for arm in arms.values() if arm is not standard]
    return [(v1, foreign), (foreign, v1), *((arm, standard) for arm in others)]


def accuracy_chart(
    title: str,
    x: str,
    models: TrainedModels,
    arms: Sequence[Arm],
    conditions: Mapping[Any, Condition],
) -> Chart:
    """Return the accuracy of arms as lines.

    Args:
        title: of the chart.
        x: name of the axis.
        models: the trained arms.
        arms: one line each.
        conditions: by their place on the axis.
    """
    series = {
        arm.name: [
            (place, seed_interval(models.values(arm, partial(accuracy, condition=condition))))
            for place, condition in conditions.items()
        ]
        for arm in arms
    }
    return Chart(title, x, "accuracy", series)


def learned_effects(models: TrainedModels, arms: Sequence[Arm]) -> dict[Effect, Values]:
    """Measure what the gate `learned` needs: the accuracy of each arm as trained."""
    measure = partial(accuracy, condition=AS_TRAINED)
    return {learned(arm.name).effect: models.values(arm, measure) for arm in arms}


def noise_effect(
    models: TrainedModels, standard: Arm, condition: Condition = STRESS
) -> dict[Effect, Values]:
    """Measure what the gate `noise` needs: the mass of standard's retrieval heads on I."""
    measure = partial(mass, kind="irrelevant", condition=condition)
    return {noise(condition.name, standard.name).effect: models.values(standard, measure)}


def gains_and_rooms(
    models: TrainedModels,
    arms: Sequence[Arm],
    pairs: Sequence[tuple[Arm, Arm]],
    stress: Condition,
    measure: Measure,
) -> dict[Effect, Values]:
    """Return the effects `gain_of` of pairs and `room_of` of arms, by a measure under stress."""
    effects = {
        gain_of(one, other, stress): models.gain(one, other, measure) for one, other in pairs
    }
    return effects | {
        room_of(arm, stress): [1 - seed for seed in models.values(arm, measure)] for arm in arms
    }


def compare(
    models: TrainedModels,
    arms: Sequence[Arm],
    pairs: Sequence[tuple[Arm, Arm]],
    *,
    conditions: Sequence[Condition] = CONDITIONS,
    stress: Condition = STRESS,
) -> Measurement:
    """Measure the gains of pairs of arms under stress.

    Args:
        models: the trained arms.
        arms: rows of the table and of the chart.
        pairs: for each pair, the gain of the first arm over the second.
        conditions: columns of the table.
        stress: the condition in which they are compared.

    Returns:
        The effects `gain_of(one, other)`, those of the gates for all arms, a table and a chart.
    """
    effects = gains_and_rooms(models, arms, pairs, stress, partial(accuracy, condition=stress))
    effects |= learned_effects(models, arms)
    for standard in filter(is_standard, arms):
        effects |= noise_effect(models, standard, stress)
    rows = [
        interval_row(
            arm.name,
            *(models.values(arm, partial(accuracy, condition=c)) for c in conditions),
            models.values(arm, partial(answer_loss, condition=stress)),
        )
        for arm in arms
    ]
    columns = ["", *(c.name for c in conditions), f"loss, {stress.name}"]
    chart = bar_chart(
        "Accuracy",
        "fraction correct",
        {
            c.name: {arm.name: models.values(arm, partial(accuracy, condition=c)) for arm in arms}
            for c in (AS_TRAINED, stress)
        },
    )
    return Measurement(effects, [Table("Accuracy", columns, rows)], [chart])


compare_synthetic = partial(compare, conditions=SYNTHETIC_CONDITIONS, stress=SYNTHETIC_STRESS)
"""`compare` under the stress of the synthetic study."""
