"""Test 5: whether differential maps are sparser than standard ones, or leave the simplex."""

from functools import partial

import numpy as np
from numpy.typing import NDArray

from antiphase.analysis.metrics import sparsity
from antiphase.experiments.accuracy_under_stress import as_trained
from antiphase.experiments.arms import STANDARD, V1, V2
from antiphase.experiments.experiment import (
    Experiment,
    Measurement,
    Table,
    bar_chart,
    interval_row,
)
from antiphase.experiments.model_measurements import by_example, maps_on_task
from antiphase.experiments.trained_models import TrainedModel, TrainedModels
from antiphase.experiments.verdicts import Effect, Prediction, learned, room

METRICS = {
    "entropy": sparsity.entropy,
    "Gini": sparsity.gini,
    "Hoyer": sparsity.hoyer,
    "fraction above 1/T": sparsity.fraction_above_uniform,
    "negative mass": sparsity.negative_mass,
    "max weight": sparsity.max_weight,
    "fraction outside [0, 1]": sparsity.fraction_outside_simplex,
}
GINI = Effect("Gini", V1.name, versus=STANDARD.name)
GINI_ROOM = Effect("1 - Gini", STANDARD.name)
ENTROPY = Effect("entropy", STANDARD.name, versus=V1.name)
ENTROPY_ROOM = Effect("entropy", STANDARD.name)
BOTH_LEARNED = (learned(STANDARD.name), learned(V1.name))
NEGATIVE_MASS = {arm.name: Effect("negative mass", arm.name) for arm in (V1, V2)}


def sparsity_metric(model: TrainedModel, name: str) -> NDArray[np.float64]:
    """Return a metric of the maps that are applied to V, by example."""
    maps = maps_on_task(model)
    metric = METRICS[name]
    return by_example([metric(m.difference, maps.truth.visible) for m in maps.layers])


class SparsityTest(Experiment):
    """Concentration and sign of the maps that are applied to V."""

    version = 3
    arms = (STANDARD, V1, V2)
    predictions = (
        Prediction(
            "sparsity",
            GINI,
            "more",
            0.05,
            "sparser rows",
            gates=(*BOTH_LEARNED, room(GINI_ROOM, 0.05)),
            primary=True,
        ),
        Prediction(
            "sparsity",
            ENTROPY,
            "more",
            0.05,
            "sparser rows",
            gates=(*BOTH_LEARNED, room(ENTROPY_ROOM, 0.05)),
        ),
        *(
            Prediction(
                "unchaining",
                effect,
                "more",
                0.05,
                "weights that softmax cannot have",
                gates=(learned(name),),
                primary=name == V1.name,
            )
            for name, effect in NEGATIVE_MASS.items()
        ),
    )

    def measure(self, models: TrainedModels) -> Measurement:
        gini, entropy = (partial(sparsity_metric, name=name) for name in ("Gini", "entropy"))
        effects = as_trained(models, self.arms) | {
            GINI: models.gain(V1, STANDARD, gini),
            GINI_ROOM: models.values(STANDARD, lambda model: 1 - gini(model)),
            ENTROPY: models.gain(STANDARD, V1, entropy),
            ENTROPY_ROOM: models.values(STANDARD, entropy),
        }
        effects |= {
            NEGATIVE_MASS[arm.name]: models.values(
                arm, partial(sparsity_metric, name="negative mass")
            )
            for arm in (V1, V2)
        }
        values = {
            arm.name: {
                name: models.values(arm, partial(sparsity_metric, name=name)) for name in METRICS
            }
            for arm in self.arms
        }
        title = "Rows of |A| that predict answers"
        rows = [interval_row(name, *(found[name] for found in values.values())) for name in METRICS]
        table = Table(title, ["", *values], rows)
        return Measurement(effects, [table], [bar_chart(title, "", values)])
