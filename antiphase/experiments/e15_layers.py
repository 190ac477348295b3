"""Test 15: in which layers the noise term matters, and whether it must be that of the sequence."""

from functools import lru_cache, partial

import numpy as np

from antiphase.analysis.metrics import flow
from antiphase.analysis.metrics.cancellation import from_another_example
from antiphase.analysis.metrics.dynamics import residual_cosine
from antiphase.analysis.statistics import Values, seed_interval
from antiphase.experiments.arms import STANDARD, V1, V2, Arm
from antiphase.experiments.conditions import STRESS
from antiphase.experiments.contests import learned_effects, noise_effect
from antiphase.experiments.experiment import Chart, Experiment, Measurement, Table, interval_row
from antiphase.experiments.model_measurements import (
    Numbers,
    heads_that_retrieve,
    maps_on_task,
)
from antiphase.experiments.trained_models import TrainedModel, TrainedModels
from antiphase.experiments.verdicts import Effect, Prediction, learned, manipulation, noise

OTHER_EXAMPLE = "that of another example"
EDITS = {
    "knocked out": flow.knocked_out,
    OTHER_EXAMPLE: from_another_example,
    "of rank 1": flow.of_rank(1),
    "of rank 4": flow.of_rank(4),
    "running mean": flow.running_mean,
}
SIZE = 0.5  # of a logit
RESAMPLED = Effect(f"logit drop, A2 is {OTHER_EXAMPLE}", V1.name, condition="retrieval heads")
KNOCKED_OUT = Effect("logit drop, A2 is knocked out", V1.name, condition="retrieval heads")
LAST_OVER_FIRST = Effect(
    "logit drop, A2 is knocked out", V1.name, condition="last layer minus first layer"
)
PAIRED = (V1, V2)
GATES = (learned(V1.name), noise(STRESS.name))


@lru_cache(maxsize=1024)
def logit_drop(model: TrainedModel, layer: int, edit: str = "knocked out") -> Numbers:
    """Return how far the answer's logit falls when a layer's noise map is edited, by example."""
    maps = maps_on_task(model)
    change = flow.logit_change(model.load(), maps.ids, maps.truth, EDITS[edit], layer)
    return change.mean(1).numpy()


@lru_cache(maxsize=1024)
def retrieval_logit_drop(model: TrainedModel, edit: str) -> Numbers:
    """Return how far the answer's logit falls when the noise maps of retrieval heads are edited.

    All of a layer together; the sum over layers, by example. Other heads do not count.
    """
    maps, net = maps_on_task(model), model.load()
    drops = [
        flow.logit_change(net, maps.ids, maps.truth, EDITS[edit], layer, chosen).mean(1).numpy()
        for layer, chosen in enumerate(heads_that_retrieve(model).layers)
        if bool(chosen.any())
    ]
    return np.sum(drops, axis=0)


def cosine_with_residual(model: TrainedModel, layer: int) -> Numbers:
    """Return the cosine of a layer's noise term with the residual stream, by example."""
    cosines = residual_cosine(model.load(), maps_on_task(model).ids)
    return cosines[layer].mean(1).double().numpy()


class LayersTest(Experiment):
    """The answer's logit without each layer's noise map, and with another example's."""

    version = 4
    arms = (STANDARD, V1, V2)
    predictions = (
        Prediction(
            "cancelling",
            RESAMPLED,
            "more",
            SIZE,
            "only the noise of this sequence cancels its noise",
            GATES,
            primary=True,
        ),
        Prediction(
            "cancelling",
            KNOCKED_OUT,
            "more",
            SIZE,
            "without subtraction the noise remains",
            GATES,
        ),
        Prediction(
            "sparsity",
            RESAMPLED,
            "same",
            SIZE,
            "any second map does",
            (*GATES, manipulation(KNOCKED_OUT, SIZE)),  # else A2 does nothing, and says nothing
            primary=True,
        ),
        Prediction(
            "unchaining",
            LAST_OVER_FIRST,
            "more",
            SIZE,
            "the analysis finds the largest benefit in the final layers",
            (learned(V1.name),),
            primary=True,
        ),
    )

    def measure(self, models: TrainedModels) -> Measurement:
        layers = range(len(maps_on_task(models[V1][0]).layers))

        def drops(arm: Arm, edit: str = "knocked out") -> list[Values]:
            return [models.values(arm, partial(logit_drop, layer=i, edit=edit)) for i in layers]

        by_layer = {arm.name: drops(arm) for arm in PAIRED}
        first, last = by_layer[V1.name][0], by_layer[V1.name][-1]
        effects = {
            RESAMPLED: models.values(V1, partial(retrieval_logit_drop, edit=OTHER_EXAMPLE)),
            KNOCKED_OUT: models.values(V1, partial(retrieval_logit_drop, edit="knocked out")),
            LAST_OVER_FIRST: [b - a for a, b in zip(first, last, strict=True)],
        }
        effects |= learned_effects(models, (V1,)) | noise_effect(models, STANDARD)
        chart = Chart(
            "Drop of the answer's logit without a layer's noise map",
            "layer",
            "drop of the answer's logit",
            {n: [(i, seed_interval(v)) for i, v in enumerate(by)] for n, by in by_layer.items()},
            "bars",
        )
        rows = [
            interval_row(
                f"{arm.name}, layer {i}",
                *(models.values(arm, partial(logit_drop, layer=i, edit=edit)) for edit in EDITS),
                models.values(arm, partial(cosine_with_residual, layer=i)),
            )
            for arm in PAIRED
            for i in layers
        ]
        for arm in PAIRED:
            drop = [models.values(arm, partial(retrieval_logit_drop, edit=edit)) for edit in EDITS]
            rows.append([*interval_row(f"{arm.name}, retrieval heads", *drop), ""])
        columns = ["", *EDITS, "cosine of the noise term with the residual stream"]
        table = Table(
            f"Drop of the answer's logit by what A2 is replaced ({STRESS.name})", columns, rows
        )
        return Measurement(effects, [table], [chart])
