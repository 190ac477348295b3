"""Test 15: in which layers the noise term matters most."""

from functools import partial

import numpy as np
from numpy.typing import NDArray

from antiphase.analysis.metrics import flow
from antiphase.analysis.metrics.dynamics import residual_cosine
from antiphase.analysis.statistics import seed_interval
from antiphase.experiments.arms import V1, V2
from antiphase.experiments.experiment import Chart, Experiment, Measurement, Table, interval_row
from antiphase.experiments.model_measurements import maps_on_task
from antiphase.experiments.trained_models import TrainedModel, TrainedModels
from antiphase.experiments.verdicts import Effect, Prediction

EDITS = {
    "knocked out": flow.knocked_out,
    "of rank 1": flow.of_rank(1),
    "of rank 4": flow.of_rank(4),
    "running mean": flow.running_mean,
}
DROP = "logit drop without A2"
LAST_OVER_FIRST = Effect(DROP, V1.name, condition="last layer minus first layer")
MEAN = Effect(DROP, V1.name, condition="mean over layers")


def logit_drop(model: TrainedModel, layer: int, edit: str = "knocked out") -> NDArray[np.float64]:
    """Return how far the answer's logit falls when a layer's noise map is edited, by example."""
    maps = maps_on_task(model)
    change = flow.logit_change(model.load(), maps.ids, maps.truth, EDITS[edit], layer)
    return change.mean(1).numpy()


def cosine_with_residual(model: TrainedModel, layer: int) -> NDArray[np.float64]:
    """Return the cosine of a layer's noise term with the residual stream, by example."""
    cosines = residual_cosine(model.load(), maps_on_task(model).ids)
    return cosines[layer].mean(1).double().numpy()


class LayersTest(Experiment):
    """The answer's logit without each layer's noise term."""

    arms = (V1, V2)
    predictions = (
        Prediction(
            "unchaining",
            LAST_OVER_FIRST,
            "more",
            0.5,
            "the analysis finds the largest benefit in the final layers",
            primary=True,
        ),
        Prediction(
            "cancelling",
            MEAN,
            "more",
            0.5,
            "if subtraction denoises, its removal lowers the answer's logit",
            primary=True,
        ),
    )

    def measure(self, models: TrainedModels) -> Measurement:
        layers = range(len(maps_on_task(models[V1][0]).layers))
        drops = {
            arm.name: [models.values(arm, partial(logit_drop, layer=i)) for i in layers]
            for arm in self.arms
        }
        first, last = drops[V1.name][0], drops[V1.name][-1]
        effects = {
            LAST_OVER_FIRST: [b - a for a, b in zip(first, last, strict=True)],
            MEAN: [np.mean(seed, axis=0) for seed in zip(*drops[V1.name], strict=True)],
        }
        chart = Chart(
            "Drop of the answer's logit without a layer's noise map",
            "layer",
            "logit",
            {n: [(i, seed_interval(v)) for i, v in enumerate(by)] for n, by in drops.items()},
            "bars",
        )
        rows = [
            interval_row(
                f"{arm.name}, layer {i}",
                *(models.values(arm, partial(logit_drop, layer=i, edit=edit)) for edit in EDITS),
                models.values(arm, partial(cosine_with_residual, layer=i)),
            )
            for arm in self.arms
            for i in layers
        ]
        columns = ["", *EDITS, "cosine of the noise term with the residual stream"]
        table = Table("Drop of the answer's logit when A2 is", columns, rows)
        return Measurement(effects, [table], [chart])
