"""Test 1: the two maps agree on noise, and less on signal, if noise is what they cancel."""

from collections.abc import Callable
from functools import partial

from torch import Tensor

from antiphase.analysis.capture import LayerMaps
from antiphase.analysis.ground_truth import GroundTruth
from antiphase.analysis.metrics.cancellation import (
    correlation,
    correlation_over_sequences,
    disagreement,
    divergence,
    from_another_example,
    from_another_head,
)
from antiphase.analysis.statistics import seed_interval
from antiphase.experiments.arms import STANDARD, V1, V2
from antiphase.experiments.conditions import STRESS, Condition
from antiphase.experiments.contests import learned_effects, noise_effect
from antiphase.experiments.experiment import (
    Cell,
    Chart,
    Experiment,
    Measurement,
    Table,
    interval_row,
)
from antiphase.experiments.model_measurements import Numbers, in_layer, in_retrieval_heads
from antiphase.experiments.trained_models import Measure, TrainedModel, TrainedModels
from antiphase.experiments.verdicts import Effect, Prediction, learned, noise

Metric = Callable[[Tensor, Tensor, Tensor], Tensor]
OTHER_HEAD, OTHER_EXAMPLE = "A2 of another head", "A2 of another example"
NULLS: dict[str, Callable[[Tensor], Tensor]] = {
    "": lambda noise: noise,
    OTHER_HEAD: from_another_head,
    OTHER_EXAMPLE: from_another_example,
}
CORRELATION = "corr(log A1, log A2) on I"
ABOVE_HEAD = Effect(CORRELATION, V1.name, versus=f"its null ({OTHER_HEAD})")
ABOVE_EXAMPLE = Effect(CORRELATION, V1.name, versus=f"its null ({OTHER_EXAMPLE})")
NOISE_OVER_SIGNAL = Effect("corr(log A1, log A2) over sequences, on I minus on R", V1.name)
GATES = (learned(V1.name), noise(STRESS.name))


def agreement(
    model: TrainedModel,
    kind: str,
    metric: Metric = correlation,
    null: str = "",
    step: int | None = None,
    condition: Condition = STRESS,
) -> Numbers:
    """Return how A1 and A2 compare in retrieval heads, by example.

    Args:
        model: with two maps per head.
        kind: on which positions, `irrelevant` or `relevant`.
        metric: of two maps and a mask.
        null: which other A2 to take, one of NULLS.
        step: a milestone; default: the run's end.
        condition: of the sequences.
    """
    return in_retrieval_heads(model, _head_metric(kind, metric, null), condition, step)


def _head_metric(
    kind: str, metric: Metric, null: str
) -> Callable[[LayerMaps, GroundTruth], Tensor]:
    def of_layer(layer: LayerMaps, truth: GroundTruth) -> Tensor:
        assert layer.noise is not None
        return metric(layer.signal, NULLS[null](layer.noise), getattr(truth, kind))

    return of_layer


def above_null(
    model: TrainedModel,
    null: str = OTHER_HEAD,
    step: int | None = None,
    condition: Condition = STRESS,
) -> Numbers:
    """Return the correlation on I above that with another A2, by example."""
    of_maps = partial(agreement, model, "irrelevant", step=step, condition=condition)
    return of_maps() - of_maps(null=null)


def noise_over_signal(model: TrainedModel) -> Numbers:
    """Return the correlation on I minus that on R, over all sequences together.

    A row has two positions in R, too few for a correlation within the row.
    """
    on_noise, on_signal = (
        agreement(model, kind, correlation_over_sequences) for kind in ("irrelevant", "relevant")
    )
    return on_noise - on_signal


class AgreementTest(Experiment):
    """Agreement of the maps of retrieval heads on I against R, beside two nulls."""

    version = 6
    arms = (STANDARD, V1, V2)
    predictions = (
        Prediction(
            "cancelling",
            ABOVE_HEAD,
            "more",
            0.1,
            "noise can only cancel if the second map of the same head has it, too",
            GATES,
            primary=True,
        ),
        Prediction(
            "cancelling",
            ABOVE_EXAMPLE,
            "more",
            0.1,
            "the noise is that of this sequence, not of positions in general",
            GATES,
        ),
        Prediction(
            "cancelling",
            NOISE_OVER_SIGNAL,
            "more",
            0.1,
            "what the maps have in common must be the noise, not the signal",
            GATES,
        ),
        Prediction(
            "sparsity",
            ABOVE_HEAD,
            "same",
            0.1,
            "a sparse signed map needs no common noise; any second map would do",
            GATES,
            primary=True,
        ),
    )

    def measure(self, models: TrainedModels) -> Measurement:
        effects = {
            ABOVE_HEAD: models.values(V1, above_null),
            ABOVE_EXAMPLE: models.values(V1, partial(above_null, null=OTHER_EXAMPLE)),
            NOISE_OVER_SIGNAL: models.values(V1, noise_over_signal),
        }
        effects |= learned_effects(models, (V1,)) | noise_effect(models, STANDARD)
        metrics: dict[str, Metric] = {
            "correlation of logs over sequences": correlation_over_sequences,
            "disagreement": disagreement,
            "Jensen-Shannon, bits": divergence,
        }
        columns = {
            "on I": ("irrelevant", ""),
            f"on I, {OTHER_HEAD}": ("irrelevant", OTHER_HEAD),
            f"on I, {OTHER_EXAMPLE}": ("irrelevant", OTHER_EXAMPLE),
            "on R": ("relevant", ""),
        }
        pairs = (V1, V2)
        rows = [
            interval_row(
                f"{arm.name}: {name}",
                *(
                    models.values(arm, partial(agreement, kind=kind, metric=metric, null=null))
                    for kind, null in columns.values()
                ),
            )
            for arm in pairs
            for name, metric in metrics.items()
        ]
        tables = [
            Table(
                f"Agreement of A1 and A2 in retrieval heads, {STRESS.name}", ["", *columns], rows
            ),
            _by_layer(models),
        ]
        lines = [(arm, place, *columns[place]) for arm in pairs for place in ("on I", "on R")]
        lines += [(V1, place, kind, null) for place, (kind, null) in columns.items() if null]
        series = {
            f"{arm.name} {place}": [
                (step, seed_interval(models.values(arm, _over_training(kind, null, step))))
                for step in models.milestones(arm)
            ]
            for arm, place, kind, null in lines
        }
        chart = Chart(
            "Correlation of log A1 and log A2 over training", "step", "correlation", series
        )
        return Measurement(effects, tables, [chart])


def _over_training(kind: str, null: str, step: int) -> Measure:
    metric = correlation_over_sequences
    return partial(agreement, kind=kind, metric=metric, null=null, step=step)


def _by_layer(models: TrainedModels) -> Table:
    """Return the correlation on I by layer: over the seeds whose layer has retrieval heads."""
    rows: list[list[Cell]] = []
    layers = models[V1][0].load().config.num_hidden_layers
    for arm in (V1, V2):
        for layer in range(layers):
            cells: list[Cell] = []
            for null in NULLS:
                metric = _head_metric("irrelevant", correlation, null)
                found = [in_layer(model, metric, layer) for model in models[arm]]
                kept = [values for values in found if values is not None]
                cells.append(seed_interval(kept) if kept else "no retrieval heads")
            retrieving = sum(values is not None for values in found)
            rows.append([f"{arm.name}, layer {layer}", f"{retrieving} of {len(found)}", *cells])
    columns = ["", "seeds with retrieval heads", "same head", OTHER_HEAD, OTHER_EXAMPLE]
    return Table("Correlation of logs within rows, on I, by layer", columns, rows)
