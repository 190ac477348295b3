"""Test 11: which mechanisms have no attention sinks."""

from functools import partial

import numpy as np

from antiphase.analysis.metrics.sinks import outliers, sink_mass
from antiphase.experiments.arms import GATED, STANDARD, V1, V2, Arm
from antiphase.experiments.contests import learned_effects
from antiphase.experiments.experiment import (
    Experiment,
    Measurement,
    Table,
    bar_chart,
    interval_row,
)
from antiphase.experiments.model_measurements import Numbers, by_example, maps_on_task
from antiphase.experiments.trained_models import TrainedModel, TrainedModels
from antiphase.experiments.verdicts import Effect, Prediction, learned, room

OFF_BY_ONE = Arm("off by one", "sink")
SINK_MASS = {arm.name: Effect("mass on S", STANDARD.name, versus=arm.name) for arm in (V1, V2)}
STANDARD_MASS = Effect("mass on S", STANDARD.name)


def mass_on_first(model: TrainedModel) -> Numbers:
    """Return the fraction of the maps on the first token, by example."""
    maps = maps_on_task(model)
    return by_example([sink_mass(m.difference, maps.truth) for m in maps.layers])


def outlier(model: TrainedModel, of: str, which: str) -> Numbers:
    """Return a largest or median magnitude of `logits` or `hidden` states: one number per model."""
    captured = maps_on_task(model).captured
    if of == "hidden":
        return np.array([max(outliers(h)[which] for h in captured.hidden[1:])])
    return np.array([max(outliers(s)[which] for m in captured.layers for s in m.scores)])


class SinksTest(Experiment):
    """Mass on the first token, and outliers."""

    version = 5
    arms = (STANDARD, V1, V2, GATED, OFF_BY_ONE)
    predictions = tuple(
        Prediction(
            "unchaining",
            effect,
            "more",
            0.03,
            "a head that can output zero needs no position to put its mass on",
            gates=(learned(STANDARD.name), learned(name), room(STANDARD_MASS, 0.03)),
            primary=name == V1.name,
        )
        for name, effect in SINK_MASS.items()
    )

    def measure(self, models: TrainedModels) -> Measurement:
        effects = learned_effects(models, self.arms) | {
            SINK_MASS[arm.name]: models.gain(STANDARD, arm, mass_on_first) for arm in (V1, V2)
        }
        effects[STANDARD_MASS] = models.values(STANDARD, mass_on_first)
        rows = [
            interval_row(
                arm.name,
                models.values(arm, mass_on_first),
                *(
                    models.values(arm, partial(outlier, of=of, which=which))
                    for of in ("logits", "hidden")
                    for which in ("top-1", "top-10", "median")
                ),
            )
            for arm in self.arms
        ]
        columns = [
            "",
            "mass on S",
            "attention logits top-1",
            "top-10",
            "median",
            "hidden states top-1",
            "top-10",
            "median",
        ]
        masses = {arm.name: models.values(arm, mass_on_first) for arm in self.arms}
        chart = bar_chart("Mass on the first token (S)", "fraction of |A|", {"": masses})
        return Measurement(effects, [Table("Sinks and outliers", columns, rows)], [chart])
