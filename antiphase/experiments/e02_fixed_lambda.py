"""Test 2: pure cancellation, with lam fixed, as distractors become nearer; which lam is learned.

The analysis says that lam learns the weight that removes most noise. That is lam*, the projection
of A1 on A2 over the irrelevant tokens; the learned lam is compared with it.
"""

from dataclasses import replace
from functools import partial

import numpy as np
from torch import Tensor

from antiphase.analysis.capture import LayerMaps
from antiphase.analysis.ground_truth import GroundTruth
from antiphase.analysis.metrics.cancellation import from_another_example, optimal_weight
from antiphase.analysis.statistics import Values, difference
from antiphase.experiments.arms import STANDARD, V1, Arm
from antiphase.experiments.conditions import (
    NEAR,
    SYNTHETIC_CONDITIONS,
    SYNTHETIC_STRESS,
    grid,
)
from antiphase.experiments.contests import accuracy_chart, compare_synthetic, synthetic_contest
from antiphase.experiments.e07_grid import SIZE
from antiphase.experiments.experiment import Experiment, Measurement, Table, interval_row
from antiphase.experiments.model_measurements import Numbers, calibrated_loss, in_retrieval_heads
from antiphase.experiments.trained_models import TrainedModel, TrainedModels
from antiphase.experiments.verdicts import Effect, Prediction, learned, manipulation, noise, room
from antiphase.training.callbacks import lambdas

FIXED = {lam: Arm(f"lam = {lam}", "diff_v1", {"lam": lam}) for lam in (1.0, 0.8, 0.5, 0.0)}
AT_STRESS = {
    near: condition for (_, near), condition in grid((SYNTHETIC_STRESS.length,), [*NEAR]).items()
}
GROWTH = Effect(
    "calibrated loss",
    FIXED[0.0].name,
    versus=FIXED[1.0].name,
    condition=f"near minus far distractors, {SYNTHETIC_STRESS.length:g}x length",
)
LEFT = Effect("calibrated loss", FIXED[0.0].name, condition=GROWTH.condition)  # to be gained
LAM_SIZE = 0.1
LAM = Effect("lam, retrieval heads", V1.name, condition=SYNTHETIC_STRESS.name)
SUBTRACTS = manipulation(LAM, LAM_SIZE)  # in the primary study, lam of the first layer is negative
LAM_GAP = Effect("lam minus lam*, retrieval heads", V1.name, condition=SYNTHETIC_STRESS.name)


def _if_it_subtracts(prediction: Prediction) -> Prediction:
    return replace(prediction, gates=(*prediction.gates, SUBTRACTS))


class FixedLambdaTest(Experiment):
    """V1 with lam fixed, against lam learned."""

    version = 8
    arms = (STANDARD, V1, *FIXED.values())
    conditions = tuple(dict.fromkeys((*SYNTHETIC_CONDITIONS, *AT_STRESS.values())))
    predictions = (
        _if_it_subtracts(
            synthetic_contest(
                "cancelling",
                V1,
                FIXED[0.0],
                "more",
                "no subtraction, no denoising",
                primary=True,
                in_noise=True,
            )
        ),
        Prediction(
            "cancelling",
            GROWTH,
            "more",
            SIZE,
            "more noise, more to cancel",
            gates=(
                learned(FIXED[1.0].name),
                learned(FIXED[0.0].name),
                room(LEFT, SIZE),
                noise(SYNTHETIC_STRESS.name),
            ),
        ),
        Prediction(
            "cancelling",
            LAM_GAP,
            "same",
            LAM_SIZE,
            "the analysis: lam learns the weight that removes most noise",
            gates=(learned(V1.name), noise(SYNTHETIC_STRESS.name)),
        ),
        synthetic_contest(
            "unchaining",
            FIXED[0.5],
            FIXED[1.0],
            "no worse",
            "weights leave the simplex at any lam above 0; exact cancelling is not needed",
            primary=True,
        ),
    )

    def measure(self, models: TrainedModels) -> Measurement:
        pairs = [
            (V1, FIXED[0.0]),
            (FIXED[0.5], FIXED[1.0]),
            *((arm, FIXED[0.0]) for lam, arm in FIXED.items() if lam),
            *((V1, arm) for lam, arm in FIXED.items() if lam),
        ]
        found = compare_synthetic(models, self.arms, pairs)
        subtracting, without = (_growth(models, FIXED[lam]) for lam in (1.0, 0.0))
        found.effects[GROWTH] = difference(without, subtracting)
        found.effects[LEFT] = without
        found.effects[LAM] = models.values(V1, learned_weight)
        found.effects[LAM_GAP] = difference(found.effects[LAM], models.values(V1, best_weight))
        title = f"Accuracy as distractors become nearer, {SYNTHETIC_STRESS.length:g}x length"
        found.figures.append(accuracy_chart(title, "distractors", models, self.arms, AT_STRESS))
        found.tables += [learned_lambda(models, V1), _best_lambda(models)]
        return found


def _growth(models: TrainedModels, arm: Arm) -> Values:
    """Return how much higher the loss is if all distractors are near, and not far."""
    near, far = (
        models.values(arm, partial(calibrated_loss, condition=AT_STRESS[name]))
        for name in ("near", "far")
    )
    return difference(near, far)


def layer_lambda(model: TrainedModel, layer: int, step: int | None = None) -> Numbers:
    """Return lam of a layer at the end of a run, or at a milestone."""
    return np.array([lambdas(model.load(step))[f"lam_{layer}"]])


def learned_weight(model: TrainedModel) -> Numbers:
    """Return lam in retrieval heads, by example."""

    def metric(layer: LayerMaps, truth: GroundTruth) -> Tensor:
        assert layer.lam is not None
        return layer.lam.mean((-1, -2)).expand(layer.signal.shape[:2])  # [B, h]

    return in_retrieval_heads(model, metric, SYNTHETIC_STRESS)


def best_weight(model: TrainedModel, null: bool = False) -> Numbers:
    """Return lam*, the lam that removes most noise, in retrieval heads, by example.

    Args:
        model: with two maps per head.
        null: of A2 of another example.
    """

    def metric(layer: LayerMaps, truth: GroundTruth) -> Tensor:
        assert layer.noise is not None
        noise = from_another_example(layer.noise) if null else layer.noise
        return optimal_weight(layer.signal, noise, truth)

    return in_retrieval_heads(model, metric, SYNTHETIC_STRESS)


def _best_lambda(models: TrainedModels) -> Table:
    """Return the learned lam beside lam*."""
    measures = (learned_weight, best_weight, partial(best_weight, null=True))
    means = [models.values(V1, measure) for measure in measures]
    medians = [[np.array([np.median(values)]) for values in by_seed] for by_seed in means]
    rows = [
        interval_row(f"{V1.name}, mean over examples", *means),
        interval_row(f"{V1.name}, median", *medians),
    ]
    columns = ["", "lam", "lam*", "lam*, A2 of another example"]
    note = (
        "lam* removes most of A1's weights on irrelevant tokens, in squares. It is a ratio: an "
        "example on whose irrelevant tokens A2 has next to nothing can move the mean."
    )
    return Table(
        f"The lam that would remove most noise, {SYNTHETIC_STRESS.name}", columns, rows, note
    )


def learned_lambda(models: TrainedModels, *arms: Arm) -> Table:
    """Return lam of each layer of arms that have one per layer."""
    layers = range(models[arms[0]][0].config.num_hidden_layers)
    measures = [partial(layer_lambda, layer=layer) for layer in layers]
    rows = [
        interval_row(arm.name, *(models.values(arm, measure) for measure in measures))
        for arm in arms
    ]
    note = "A negative lam adds the second map instead of subtracting it."
    return Table("Learned lam", ["", *(f"layer {layer}" for layer in layers)], rows, note)
