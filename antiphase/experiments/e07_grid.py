"""Test 7: the grid that separates the readings, sequence length against noise."""

from functools import partial

import numpy as np
from numpy.typing import NDArray

from antiphase.analysis.statistics import Values, difference
from antiphase.experiments.accuracy_under_stress import as_trained, unlearned_note
from antiphase.experiments.arms import STANDARD, V1, V2, Arm, base_recipe
from antiphase.experiments.experiment import (
    Experiment,
    Figure,
    Heatmap,
    Measurement,
    Table,
    interval_row,
)
from antiphase.experiments.model_measurements import NEEDLES_ONCE, answers, pooled
from antiphase.experiments.trained_models import TrainedModel, TrainedModels
from antiphase.experiments.verdicts import Effect, Prediction, learned, room

LENGTHS = (64, 128, 256)
NEAR = (0.0, 0.5, 1.0)  # fraction of distractors that are near: with keys of needles
ARMS = {
    ("standard", 64): STANDARD,
    ("V1", 64): V1,
    ("V2", 64): V2,
} | {
    (name, length): Arm(f"{name} (length {length})", base_recipe(attention, length))
    for name, attention in (("standard", "standard"), ("V1", "diff_v1"), ("V2", "diff_v2"))
    for length in LENGTHS[1:]
}
BY_NOISE = Effect(
    "accuracy",
    V1.name,
    versus=STANDARD.name,
    condition="near minus far distractors, mean over lengths",
)
BY_LENGTH = Effect(
    "accuracy",
    V1.name,
    versus=STANDARD.name,
    condition="longest minus shortest, mean over distractors",
)
NOISE_ROOM = Effect("1 - accuracy", STANDARD.name, condition="near distractors, mean over lengths")
LENGTH_ROOM = Effect("1 - accuracy", STANDARD.name, condition="longest, mean over distractors")
ALL_LEARNED = tuple(learned(arm.name) for (name, _), arm in ARMS.items() if name != "V2")
NOISE_GATES = (*ALL_LEARNED, room(NOISE_ROOM, 0.02))
LENGTH_GATES = (*ALL_LEARNED, room(LENGTH_ROOM, 0.02))


def grid_accuracy(model: TrainedModel, near: float) -> NDArray[np.float64]:
    """Return 1 or 0 per sequence, with each needle once and that fraction of near distractors."""
    return answers(model, **NEEDLES_ONCE, near=near).correct


class GridTest(Experiment):
    """Length x noise, gain over standard in each cell."""

    version = 3
    arms = tuple(ARMS.values())
    predictions = (
        Prediction(
            "cancelling",
            BY_NOISE,
            "more",
            0.02,
            "a slope along noise at fixed length",
            gates=NOISE_GATES,
            primary=True,
        ),
        Prediction(
            "sparsity",
            BY_LENGTH,
            "more",
            0.02,
            "a slope along length at fixed noise",
            gates=LENGTH_GATES,
            primary=True,
        ),
        Prediction("sparsity", BY_NOISE, "same", 0.02, "no slope along noise", gates=NOISE_GATES),
    )

    def measure(self, models: TrainedModels) -> Measurement:
        gains = {
            (name, length, near): models.gain(
                ARMS[name, length], ARMS["standard", length], partial(grid_accuracy, near=near)
            )
            for name in ("V1", "V2")
            for length in LENGTHS
            for near in NEAR
        }
        by_noise = [difference(gains["V1", n, NEAR[-1]], gains["V1", n, NEAR[0]]) for n in LENGTHS]
        by_length = [
            difference(gains["V1", LENGTHS[-1], near], gains["V1", LENGTHS[0], near])
            for near in NEAR
        ]

        def left(length: int, near: float) -> Values:
            return models.values(ARMS["standard", length], lambda m: 1 - grid_accuracy(m, near))

        effects = as_trained(models, self.arms) | {
            BY_NOISE: _mean(by_noise),
            BY_LENGTH: _mean(by_length),
            NOISE_ROOM: _mean([left(n, NEAR[-1]) for n in LENGTHS]),
            LENGTH_ROOM: _mean([left(LENGTHS[-1], near) for near in NEAR]),
        }
        rows = [
            interval_row(
                f"{name}, length {n}",
                *(models.values(ARMS[name, n], partial(grid_accuracy, near=x)) for x in NEAR),
            )
            for name in ("standard", "V1", "V2")
            for n in LENGTHS
        ]
        columns = ["", *(f"near distractors {near:g}" for near in NEAR)]
        heatmaps: list[Figure] = [
            Heatmap(
                f"Accuracy of {name} minus that of standard",
                "fraction of near distractors",
                "length",
                [f"{near:g}" for near in NEAR],
                [str(n) for n in LENGTHS],
                [[pooled(list(gains[name, n, near])) for near in NEAR] for n in LENGTHS],
            )
            for name in ("V1", "V2")
        ]
        notes = unlearned_note(models, self.arms, partial(grid_accuracy, near=0.0))
        return Measurement(effects, [Table("Accuracy", columns, rows)], heatmaps, notes)


def _mean(cells: list[Values]) -> Values:
    """Return the mean over cells, by seed and example."""
    return [np.mean(seed, axis=0) for seed in zip(*cells, strict=True)]
