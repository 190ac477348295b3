"""Test 3: does training push the two maps together on the noise."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from antiphase.analysis.metrics.cancellation import correlation
from antiphase.analysis.metrics.dynamics import hessian_extremes, pair_gradients
from antiphase.analysis.statistics import bootstrap
from antiphase.experiments.arms import Trained
from antiphase.experiments.e01_agreement import on
from antiphase.experiments.experiment import (
    V1,
    Experiment,
    Heatmap,
    Measured,
    Picture,
    Shelf,
    Table,
    interval_row,
)
from antiphase.experiments.model_measurements import look
from antiphase.experiments.verdicts import Prediction
from antiphase.tasks.base import as_tensors
from antiphase.training.callbacks import lambdas, read_metrics

EFFECT = "V1: correlation on I above another head's, end minus start"


class Gradients(Experiment):
    """Agreement on I before and after training; gradients of the pair; curvature."""

    number = 3
    title = "Gradient dynamics"
    question = "Does training push the maps together on irrelevant tokens?"
    quick = (V1,)
    version = 3
    amended = (
        "Amended after a first run: it measured the rise of the correlation alone (0.16 [0.09, "
        "0.25]), though another head's rises as much; every agreement needs its null."
    )
    arms = (V1,)
    predictions = (
        Prediction(
            "cancelling",
            EFFECT,
            "above",
            0.1,
            "if common noise is what helps, training makes it",
        ),
        Prediction(
            "sparsity",
            EFFECT,
            "below",
            0.1,
            "a sparse signed map comes from maps that part",
        ),
    )

    def measure(self, shelf: Shelf) -> Measured:
        steps = shelf.milestones(V1)

        def above_null(trained: Trained, step: int) -> NDArray[np.float64]:
            seen = look(trained, step)
            return on(seen, "irrelevant", correlation) - on(seen, "irrelevant", correlation, True)

        def pushed(trained: Trained) -> NDArray[np.float64]:
            return above_null(trained, steps[-1]) - above_null(trained, steps[0])

        cosines = {
            part: [
                (step, bootstrap([np.array([v]) for v in _cosines(shelf[V1], step, part)]))
                for step in steps
            ]
            for part in ("q", "k")
        }
        picture = Picture(
            "Cosine of the gradients of the pair",
            "step",
            "cosine",
            {f"{part}1 and {part}2": points for part, points in cosines.items()},
        )
        rows = []
        for step in (steps[0], steps[len(steps) // 2], steps[-1]):
            found = [_hessian(trained, step) for trained in shelf[V1]]
            largest, smallest = ([np.array([f[i]]) for f in found] for i in (0, 1))
            rows.append(interval_row(f"step {step}", largest, smallest))
        table = Table("Eigenvalues of the loss's Hessian", ["", "largest", "smallest"], rows)
        pictures: list[Picture | Heatmap] = [picture, _lambdas(shelf[V1], steps), _norms(shelf[V1])]
        return Measured({EFFECT: shelf.values(V1, pushed)}, [table], pictures)


def _lambdas(models: list[Trained], steps: list[int]) -> Picture:
    """Return lam of each layer over training."""
    found = {step: [lambdas(trained.model(step)) for trained in models] for step in steps}
    series = {
        f"layer {name.removeprefix('lam_')}": [
            (step, bootstrap([np.array([seed[name]]) for seed in seeds]))
            for step, seeds in found.items()
        ]
        for name in found[steps[0]][0]
    }
    return Picture("lam over training", "step", "lam", series)


def _norms(models: list[Trained]) -> Picture:
    """Return the gradient's norm over training, by the logged steps of each seed."""
    series: dict[str, list[tuple[Any, Any]]] = {}
    for trained in models:
        lines = [line for line in read_metrics(trained.folder) if "grad_norm" in line]
        points = [(line["step"], bootstrap([np.array([line["grad_norm"]])])) for line in lines]
        series[f"seed {trained.job.recipe.seed}"] = points
    return Picture("Norm of the gradient, before clipping at 1", "step", "norm", series)


def _batch(trained: Trained, size: int) -> dict[str, torch.Tensor]:
    tensors = as_tensors(trained.held_out(size).examples(range(size)))
    return {name: tensors[name] for name in ("input_ids", "labels")}


def _cosines(models: list[Trained], step: int, part: str) -> list[float]:
    found = []
    for trained in models:
        model = trained.model(step)
        model(**_batch(trained, 32), use_cache=False).loss.backward()
        layers = model.model.attention_layers
        found.append(float(np.mean([pair_gradients(layer)[part] for layer in layers])))
    return found


def _hessian(trained: Trained, step: int) -> tuple[float, float]:
    return hessian_extremes(trained.model(step), _batch(trained, 8), steps=12)
