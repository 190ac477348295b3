"""Test 16: how much the order of the pairs in the context matters.

The published claim is about many shots of a classification. No setting of the task `many_shot` was
learned by a nano model with standard attention (docs/log.md), so the shots are the key-value pairs
of the study's own task: the same pairs in several orders, with the same question at the end.

Best minus worst of 8 orders falls with every gain in accuracy, also where errors fall at random. So
what is judged is its ratio to the spread of errors that fall at random at the same accuracy.
"""

import numpy as np

from antiphase.experiments.arms import FOREIGN_NOISE, STANDARD, V1, V2
from antiphase.experiments.conditions import AS_TRAINED, SYNTHETIC_STRESS, ChangedTask
from antiphase.experiments.contests import learned_effects, noise_effect
from antiphase.experiments.experiment import (
    Experiment,
    Measurement,
    Table,
    bar_chart,
    interval_row,
)
from antiphase.experiments.model_measurements import Numbers, accuracy
from antiphase.experiments.trained_models import TrainedModel, TrainedModels
from antiphase.experiments.verdicts import Effect, Prediction, learned, noise, room

ORDERS = tuple(
    ChangedTask(
        f"{SYNTHETIC_STRESS.name}, order {k}",
        SYNTHETIC_STRESS.length,
        SYNTHETIC_STRESS.near,
        (("order", k),),
    )
    for k in range(8)
)
METRIC = f"best minus worst of {len(ORDERS)} orders, over that of errors at random"
SIZE = 0.1  # of this ratio
SPREAD = Effect(METRIC, STANDARD.name, versus=V1.name, condition=SYNTHETIC_STRESS.name)
OF_FOREIGN = Effect(METRIC, V1.name, versus=FOREIGN_NOISE.name, condition=SYNTHETIC_STRESS.name)
LEFT = Effect(METRIC, STANDARD.name, condition=SYNTHETIC_STRESS.name)


def by_order(model: TrainedModel) -> Numbers:
    """Return whether the question is answered under each order of the pairs, [orders, n]."""
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


def sensitivity(model: TrainedModel) -> Numbers:
    """Return best minus worst over that of errors at random.

    0: the order decides nothing. 1: errors fall over orders as at random. Above: the order decides.
    """
    at_random = float(spread_at_random(model)[0])
    return np.array([spread(model).mean() / at_random if at_random else 0.0])


class OrderTest(Experiment):
    """Best and worst order of the same pairs."""

    arms = (STANDARD, V1, V2, FOREIGN_NOISE)
    conditions = (AS_TRAINED, *ORDERS)
    predictions = (
        Prediction(
            "cancelling",
            SPREAD,
            "more",
            SIZE,
            "with less noise, what stands where matters less",
            gates=(
                learned(STANDARD.name),
                learned(V1.name),
                room(LEFT, SIZE),
                noise(SYNTHETIC_STRESS.name),
            ),
            primary=True,
        ),
        Prediction(
            "unchaining",
            OF_FOREIGN,
            "no worse",
            SIZE,
            "any second map does: that of another sequence, too",
            gates=(learned(V1.name), learned(FOREIGN_NOISE.name), room(LEFT, SIZE)),
            primary=True,
        ),
    )

    def measure(self, models: TrainedModels) -> Measurement:
        """Measure the answers under all orders."""
        effects = learned_effects(models, self.arms) | {
            SPREAD: models.gain(STANDARD, V1, sensitivity),
            OF_FOREIGN: models.gain(V1, FOREIGN_NOISE, sensitivity),
            LEFT: models.values(STANDARD, sensitivity),
        }
        effects |= noise_effect(models, STANDARD, SYNTHETIC_STRESS)
        columns = {
            "mean over orders": over_orders,
            "best order": best,
            "worst order": worst,
            "best minus worst": spread,
            "best minus worst, errors at random": spread_at_random,
            "ratio": sensitivity,
        }
        rows = [
            interval_row(arm.name, *(models.values(arm, measure) for measure in columns.values()))
            for arm in self.arms
        ]
        note = (
            "Each sequence has its own best and worst order of the same pairs. Errors at random "
            "fall anywhere over sequences and orders, at the same accuracy."
        )
        title = f"Accuracy over {len(ORDERS)} orders, {SYNTHETIC_STRESS.name}"
        chart = bar_chart(
            "Best minus worst order",
            "fraction of sequences",
            {"": {arm.name: models.values(arm, spread) for arm in self.arms}},
        )
        return Measurement(effects, [Table(title, ["", *columns], rows, note)], [chart])
