"""Test 5: whether differential maps are sparser than standard ones, or leave the simplex."""

from functools import partial

import numpy as np
from numpy.typing import NDArray

from antiphase.analysis.metrics import sparsity
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
from antiphase.experiments.verdicts import Effect, Prediction

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
ENTROPY = Effect("entropy", V1.name, versus=STANDARD.name)
NEGATIVE_MASS = {arm.name: Effect("negative mass", arm.name) for arm in (V1, V2)}


def sparsity_metric(model: TrainedModel, name: str) -> NDArray[np.float64]:
    """Return a metric of the maps that are applied to V, by example."""
    maps = maps_on_task(model)
    metric = METRICS[name]
    return by_example([metric(m.difference, maps.truth.visible) for m in maps.layers])


class SparsityTest(Experiment):
    """Concentration and sign of the maps that are applied to V."""

    version = 2
    arms = (STANDARD, V1, V2)
    predictions = (
        Prediction("sparsity", GINI, "above", 0.05, "sparser rows"),
        Prediction("sparsity", ENTROPY, "below", 0.05, "sparser rows"),
        *(
            Prediction("unchaining", effect, "above", 0.05, "weights that softmax cannot have")
            for effect in NEGATIVE_MASS.values()
        ),
    )

    def measure(self, models: TrainedModels) -> Measurement:
        effects = {
            GINI: models.gain(V1, STANDARD, partial(sparsity_metric, name="Gini")),
            ENTROPY: models.gain(V1, STANDARD, partial(sparsity_metric, name="entropy")),
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
