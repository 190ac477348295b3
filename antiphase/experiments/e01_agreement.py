"""Test 1: the two maps agree on noise, and less on signal, if noise is what they cancel."""

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from antiphase.analysis.metrics.cancellation import (
    correlation,
    disagreement,
    divergence,
    from_another_head,
)
from antiphase.analysis.statistics import seed_interval
from antiphase.experiments.arms import V1, V2
from antiphase.experiments.experiment import Chart, Experiment, Measurement, Table, interval_row
from antiphase.experiments.model_measurements import by_example, maps_on_task
from antiphase.experiments.trained_models import TrainedModel, TrainedModels
from antiphase.experiments.verdicts import Effect, Prediction

Metric = Callable[[Tensor, Tensor, Tensor], Tensor]

CORRELATION = "corr(log A1, log A2) on I"
NULL = "null (A2 of another head)"
ABOVE_NULL = Effect(CORRELATION, V1.name, versus=NULL)
NOISE_OVER_SIGNAL = Effect(f"{CORRELATION} minus on R", V1.name)


def agreement(
    model: TrainedModel,
    kind: str,
    metric: Metric = correlation,
    null: bool = False,
    step: int | None = None,
) -> NDArray[np.float64]:
    """Return how A1 and A2 compare, by example.

    Args:
        model: with two maps per head.
        kind: on which positions, `irrelevant` or `relevant`.
        metric: of two maps and a mask.
        null: take A2 from another head.
        step: a milestone; default: the run's end.
    """
    maps = maps_on_task(model, step)
    where = getattr(maps.truth, kind)
    return by_example(
        [
            metric(m.signal, from_another_head(m.noise) if null else m.noise, where)
            for m in maps.layers
            if m.noise is not None
        ]
    )


def above_null(model: TrainedModel, step: int | None = None) -> NDArray[np.float64]:
    """Return the correlation on I above that with A2 of another head, by example."""
    same = agreement(model, "irrelevant", step=step)
    return same - agreement(model, "irrelevant", null=True, step=step)


def noise_over_signal(model: TrainedModel) -> NDArray[np.float64]:
    """Return the correlation on I minus that on R, by example."""
    return agreement(model, "irrelevant") - agreement(model, "relevant")


class AgreementTest(Experiment):
    """Agreement of the maps on I against R, beside a null."""

    arms = (V1, V2)
    predictions = (
        Prediction(
            "cancelling",
            ABOVE_NULL,
            "more",
            0.1,
            "noise can only cancel if the second map of the same head has it too",
            primary=True,
        ),
        Prediction(
            "cancelling",
            NOISE_OVER_SIGNAL,
            "more",
            0.1,
            "what the maps have in common must be the noise, not the signal",
        ),
        Prediction(
            "sparsity",
            ABOVE_NULL,
            "same",
            0.1,
            "a sparse signed map needs no common noise; any second map would do",
            primary=True,
        ),
    )

    def measure(self, models: TrainedModels) -> Measurement:
        effects = {
            ABOVE_NULL: models.values(V1, above_null),
            NOISE_OVER_SIGNAL: models.values(V1, noise_over_signal),
        }
        metrics: dict[str, Metric] = {
            "correlation of logs": correlation,
            "disagreement": disagreement,
            "Jensen-Shannon, bits": divergence,
        }
        columns = {"on I": ("irrelevant", False), "on I, null": ("irrelevant", True)}
        columns |= {"on R": ("relevant", False)}
        rows = [
            interval_row(
                f"{arm.name}: {name}",
                *(
                    models.values(arm, partial(agreement, kind=kind, metric=metric, null=null))
                    for kind, null in columns.values()
                ),
            )
            for arm in self.arms
            for name, metric in metrics.items()
        ]
        table = Table("Agreement of A1 and A2", ["", *columns], rows)
        series = {
            f"{arm.name} on {'I' if kind == 'irrelevant' else 'R'}": [
                (step, seed_interval(models.values(arm, partial(agreement, kind=kind, step=step))))
                for step in models.milestones(arm)
            ]
            for arm in self.arms
            for kind in ("irrelevant", "relevant")
        }
        chart = Chart("Correlation of the maps over training", "step", "correlation", series)
        return Measurement(effects, [table], [chart])
