"""Test 3: whether training makes the two maps agree on the noise."""

from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch

from antiphase.analysis.metrics.dynamics import hessian_extremes, pair_gradients
from antiphase.analysis.statistics import Interval, seed_interval
from antiphase.experiments.arms import (
    FOREIGN_NOISE,
    SIGNED_MASK,
    STANDARD,
    STANDARD_NORM,
    V1,
    V1_NO_NORM,
    V2,
)
from antiphase.experiments.conditions import SYNTHETIC_CONDITIONS, SYNTHETIC_STRESS
from antiphase.experiments.contests import learned_effects, noise_effect
from antiphase.experiments.e01_agreement import CORRELATION, OTHER_HEAD, above_null
from antiphase.experiments.e02_fixed_lambda import FIXED, layer_lambda
from antiphase.experiments.e09_finer_heads import HALF_DIM
from antiphase.experiments.e24_top_k_curve import TOP_KS
from antiphase.experiments.e25_scalar import STANDARD_SCALAR, V1_SCALAR
from antiphase.experiments.e26_rank_penalty import FIXED_NOISE, PENALISED
from antiphase.experiments.e27_random_noise import RANDOM_NOISE
from antiphase.experiments.experiment import (
    Chart,
    Experiment,
    Figure,
    Measurement,
    Table,
    interval_row,
)
from antiphase.experiments.model_measurements import Numbers
from antiphase.experiments.trained_models import Measure, TrainedModel, TrainedModels
from antiphase.experiments.verdicts import Effect, Prediction, learned, noise
from antiphase.tasks.base import as_tensors
from antiphase.training.callbacks import read_metrics

OVER_TRAINING = (STANDARD, STANDARD_NORM, V1, V1_NO_NORM, V2)
AT_THE_END = (
    *FIXED.values(),
    HALF_DIM,
    *TOP_KS.values(),
    SIGNED_MASK,
    STANDARD_SCALAR,
    V1_SCALAR,
    PENALISED,
    FIXED_NOISE,
    FOREIGN_NOISE,
    RANDOM_NOISE,
)
"""Arms of the other tests on the same task: the curvature of every arm is measured."""
GATES = (learned(V1.name), noise(SYNTHETIC_STRESS.name))
RISE = Effect(CORRELATION, V1.name, versus=OTHER_HEAD, condition="end minus start of training")


class GradientsTest(Experiment):
    """Agreement on I before and after training; gradients of the pair; curvature of every arm."""

    version = 7
    conditions = SYNTHETIC_CONDITIONS
    arms = (*OVER_TRAINING, *AT_THE_END)
    predictions = (
        Prediction(
            "cancelling",
            RISE,
            "more",
            0.1,
            "if common noise is what helps, training makes it",
            GATES,
            primary=True,
        ),
        Prediction(
            "sparsity",
            RISE,
            "same",
            0.1,
            "a sparse signed map needs no common noise: training does not make it",
            GATES,
            primary=True,
        ),
    )

    def measure(self, models: TrainedModels) -> Measurement:
        steps = models.milestones(V1)
        cosines = {
            f"{part}1 and {part}2": [
                (step, _over_seeds(models, partial(gradient_cosine, step=step, part=part)))
                for step in steps
            ]
            for part in ("q", "k")
        }
        figures: list[Figure] = [
            Chart("Cosine of the gradients of paired projections", "step", "cosine", cosines),
            _lambda_chart(models, steps),
            _gradient_norm_chart(models),
        ]
        rows = []
        for arm in self.arms:
            kept = models.milestones(arm) if arm in OVER_TRAINING else []
            wanted = models[arm][0].run.recipe.milestones
            first_and_middle = {*wanted[:1], *wanted[len(wanted) // 2 :][:1]}
            for step in (*(step for step in kept if step in first_and_middle), None):
                largest, smallest = (
                    models.values(arm, partial(hessian_eigenvalue, step=step, which=which))
                    for which in EIGENVALUES
                )
                when = "end" if step is None else f"step {step}"
                rows.append(interval_row(f"{arm.name}, {when}", largest, smallest))
        table = Table("Eigenvalues of the loss's Hessian", ["", *EIGENVALUES], rows)
        effects = {RISE: models.values(V1, partial(rise, since=steps[0]))}
        effects |= learned_effects(models, (V1,)) | noise_effect(models, STANDARD, SYNTHETIC_STRESS)
        return Measurement(effects, [table], figures)


def rise(model: TrainedModel, since: int) -> Numbers:
    """Return how much the agreement of the maps beyond their null has risen since a milestone."""
    agreement = partial(above_null, model, condition=SYNTHETIC_STRESS)
    return agreement() - agreement(step=since)


def _over_seeds(models: TrainedModels, measure: Measure) -> Interval:
    return seed_interval(models.values(V1, measure))


def _lambda_chart(models: TrainedModels, steps: list[int]) -> Chart:
    """Return lam of each layer over training."""
    series = {
        f"layer {layer}": [
            (step, _over_seeds(models, partial(layer_lambda, layer=layer, step=step)))
            for step in steps
        ]
        for layer in range(models[V1][0].config.num_hidden_layers)
    }
    return Chart("lam over training", "step", "lam", series)


def logged(model: TrainedModel, name: str) -> Numbers:
    """Return a value of the lines that a run logged with its gradient norm."""
    lines = [line for line in read_metrics(model.folder) if "grad_norm" in line]
    return np.array([line[name] for line in lines])


def _gradient_norm_chart(models: TrainedModels) -> Chart:
    """Return the gradient norm of V1 over training, at the logged steps of each seed."""
    steps, norms = (models.values(V1, partial(logged, name=n)) for n in ("step", "grad_norm"))
    series: dict[str, list[tuple[Any, Interval]]] = {
        f"seed {model.run.recipe.seed}": [
            (int(step), _single(float(norm))) for step, norm in zip(*points, strict=True)
        ]
        for model, *points in zip(models[V1], steps, norms, strict=True)
    }
    return Chart("Gradient norm, before clipping at 1", "step", "norm", series)


def _single(value: float) -> Interval:
    """Return the value of one run as an interval without width: there is nothing to estimate."""
    return Interval(value, value, value, 1)


def _batch(model: TrainedModel, size: int) -> dict[str, torch.Tensor]:
    tensors = as_tensors(model.held_out(size).examples(range(size)))
    return {name: tensors[name] for name in ("input_ids", "labels")}


def gradient_cosine(model: TrainedModel, step: int, part: str) -> Numbers:
    """Return the cosine of the gradients of a pair of projections, as a mean over layers."""
    return np.array([_cosines(model, step)[part]])


@lru_cache(maxsize=4)
def _cosines(model: TrainedModel, step: int) -> dict[str, float]:
    net = model.load(step)
    net(**_batch(model, 32), use_cache=False).loss.backward()
    found = [pair_gradients(layer) for layer in net.model.attention_layers]
    net.zero_grad()
    return {part: float(np.mean([layer[part] for layer in found])) for part in found[0]}


EIGENVALUES = ("largest", "smallest")
LANCZOS_STEPS = 40  # with 12, the smallest eigenvalue is half of its value at 80


def hessian_eigenvalue(model: TrainedModel, step: int | None, which: str) -> Numbers:
    """Return the largest or the smallest eigenvalue of the loss's Hessian."""
    return np.array([_hessian(model, step)[EIGENVALUES.index(which)]])


@lru_cache(maxsize=4)
def _hessian(model: TrainedModel, step: int | None) -> tuple[float, float]:
    return hessian_extremes(model.load(step), _batch(model, 8), steps=LANCZOS_STEPS)
