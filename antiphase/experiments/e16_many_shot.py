"""Test 16: learning from labelled shots in the context, and how much their order matters."""

import numpy as np

from antiphase.experiments.arms import FOREIGN_NOISE, STANDARD, V1, V2, on_task
from antiphase.experiments.conditions import AS_TRAINED, ChangedTask
from antiphase.experiments.contests import (
    SIZE,
    accuracy_chart,
    compare,
    noise_contests,
    noise_pairs,
)
from antiphase.experiments.experiment import (
    Experiment,
    Measurement,
    Table,
    interval_row,
)
from antiphase.experiments.model_measurements import Numbers, accuracy
from antiphase.experiments.trained_models import TrainedModel, TrainedModels
from antiphase.experiments.verdicts import Effect, Prediction, learned, room

SHOT_TOKENS = 3
MANY_SHOT = {
    "task": "many_shot",
    "task_options": {
        "length": 1 + 32 * SHOT_TOKENS,
        "classes": 4,
        "labels": 16,
        "vocabulary": 64,
        # any two shots of a class have a word in common, so every question can be answered
        "class_words": 3,
        "words": 2,
    },
}
ARMS = on_task("many-shot", (STANDARD, V1, V2, FOREIGN_NOISE), MANY_SHOT)
CLASSES = 16  # four times as many as in training: fewer shots of the class that is asked for
SHOTS = {
    n: ChangedTask(
        f"{n} shots, {CLASSES} classes",
        options=(("length", 1 + n * SHOT_TOKENS), ("classes", CLASSES)),
    )
    for n in (24, 32, 48, 64)
}
STRESS = SHOTS[48]  # 1.5 times as long as in training
ORDERS = tuple(
    ChangedTask(f"{STRESS.name}, order {k}", options=(*STRESS.options, ("order", k)))
    for k in range(8)
)
SPREAD = Effect(
    f"best minus worst of {len(ORDERS)} orders",
    ARMS["standard"].name,
    versus=ARMS["V1"].name,
    condition=STRESS.name,
)
SPREAD_LEFT = Effect(SPREAD.metric, SPREAD.arm, condition=STRESS.name)


def by_order(model: TrainedModel) -> Numbers:
    """Return whether the question is answered under each order of the shots, [orders, n]."""
    return np.stack([accuracy(model, condition) for condition in ORDERS])


def over_orders(model: TrainedModel) -> Numbers:
    """Return the fraction of orders under which the question is answered, by sequence."""
    return np.asarray(by_order(model).mean(0))


def best(model: TrainedModel) -> Numbers:
    """Return whether the question is answered under the best order for it, by sequence."""
    return np.asarray(by_order(model).max(0))


def worst(model: TrainedModel) -> Numbers:
    """Return whether the question is answered under the worst order for it, by sequence."""
    return np.asarray(by_order(model).min(0))


def spread(model: TrainedModel) -> Numbers:
    """Return best minus worst, by sequence: 1 if the order decides whether it is answered."""
    return best(model) - worst(model)


def spread_at_random(model: TrainedModel) -> Numbers:
    """Return the spread of a model whose errors fall at random over sequences and orders."""
    right = by_order(model).mean(1)  # by order
    return np.array([1 - right.prod() - (1 - right).prod()])


class ManyShotTest(Experiment):
    """Accuracy by number of shots; best and worst order of the same shots."""

    arms = tuple(ARMS.values())
    conditions = (AS_TRAINED, *SHOTS.values(), *ORDERS)
    predictions = (
        *noise_contests(ARMS, STRESS, "shots of other classes are noise"),
        Prediction(
            "cancelling",
            SPREAD,
            "more",
            SIZE,
            "with less noise, what stands where matters less",
            gates=(
                learned(ARMS["standard"].name),
                learned(ARMS["V1"].name),
                room(SPREAD_LEFT, SIZE),
            ),
        ),
    )

    def measure(self, models: TrainedModels) -> Measurement:
        found = compare(
            models,
            self.arms,
            noise_pairs(ARMS),
            conditions=(AS_TRAINED, *SHOTS.values()),
            stress=STRESS,
        )
        found.effects[SPREAD] = models.gain(ARMS["standard"], ARMS["V1"], spread)
        found.effects[SPREAD_LEFT] = models.values(ARMS["standard"], spread)
        columns = {
            "mean over orders": over_orders,
            "best order": best,
            "worst order": worst,
            "best minus worst": spread,
            "best minus worst, errors at random": spread_at_random,
        }
        rows = [
            interval_row(arm.name, *(models.values(arm, measure) for measure in columns.values()))
            for arm in self.arms
        ]
        note = (
            "Each sequence has its own best and worst order of the same shots. The last column is "
            "the spread of errors that fall at random over sequences and orders, at the same "
            "accuracy."
        )
        title = f"Accuracy over {len(ORDERS)} orders, {STRESS.name}"
        found.tables.append(Table(title, ["", *columns], rows, note))
        title = f"Accuracy by number of shots, {CLASSES} classes"
        found.figures.append(accuracy_chart(title, "shots", models, self.arms, SHOTS))
        return found
