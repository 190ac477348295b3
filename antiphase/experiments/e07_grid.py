"""Test 7: the grid that separates the readings, sequence length against noise."""

from functools import partial

import numpy as np

from antiphase.analysis.statistics import Values, difference
from antiphase.experiments.arms import STANDARD, V1, V2, Arm
from antiphase.experiments.conditions import DISTRACTORS, GRID, LENGTHS, STRESS
from antiphase.experiments.contests import learned_effects, noise_effect
from antiphase.experiments.experiment import (
    Experiment,
    Figure,
    Heatmap,
    Measurement,
    Table,
    interval_row,
)
from antiphase.experiments.model_measurements import accuracy, answer_loss
from antiphase.experiments.trained_models import TrainedModels
from antiphase.experiments.verdicts import Effect, Prediction, learned, noise, room

SIZE = 0.1  # nats
BY_NOISE, BY_LENGTH = (
    Effect("gain in loss over standard", V1.name, condition=condition)
    for condition in ("near minus far, mean over lengths", "1.5x minus 1x length, mean over noise")
)
LOSS = Effect("loss", STANDARD.name, condition=STRESS.name)
GATES = (learned(V1.name), learned(STANDARD.name), room(LOSS, SIZE), noise(STRESS.name))


class GridTest(Experiment):
    """Length x noise: how much lower the loss is than standard's in each cell."""

    version = 4
    arms = (STANDARD, V1, V2)
    predictions = (
        Prediction(
            "cancelling",
            BY_NOISE,
            "more",
            SIZE,
            "the gain grows with noise at fixed length",
            GATES,
            primary=True,
        ),
        Prediction(
            "sparsity",
            BY_LENGTH,
            "more",
            SIZE,
            "the gain grows with length at fixed noise",
            GATES,
            primary=True,
        ),
        Prediction("sparsity", BY_NOISE, "same", SIZE, "noise as such plays no role", GATES),
    )

    def measure(self, models: TrainedModels) -> Measurement:
        gains = {
            (arm.name, *cell): models.gain(STANDARD, arm, partial(answer_loss, condition=condition))
            for arm in (V1, V2)
            for cell, condition in GRID.items()
        }
        effects = {BY_NOISE: _by_noise(gains, V1), BY_LENGTH: _by_length(gains, V1)}
        effects |= {
            Effect(BY_NOISE.metric, V2.name, condition=BY_NOISE.condition): _by_noise(gains, V2),
            Effect(BY_LENGTH.metric, V2.name, condition=BY_LENGTH.condition): _by_length(gains, V2),
            LOSS: models.values(STANDARD, answer_loss),
        }
        effects |= learned_effects(models, (STANDARD, V1)) | noise_effect(models, STANDARD)
        columns = ["", *(condition.name for condition in GRID.values())]
        tables = [
            Table(
                title,
                columns,
                [
                    interval_row(
                        arm.name,
                        *(models.values(arm, partial(measure, condition=c)) for c in GRID.values()),
                    )
                    for arm in self.arms
                ],
            )
            for title, measure in (("Loss on the answer", answer_loss), ("Accuracy", accuracy))
        ]
        heatmaps: list[Figure] = [
            Heatmap(
                f"Loss of standard minus that of {arm.name}",
                "distractors",
                "times the length in training",
                list(DISTRACTORS),
                [f"{n:g}" for n in LENGTHS],
                [
                    [
                        float(np.mean([v.mean() for v in gains[arm.name, n, near]]))
                        for near in DISTRACTORS
                    ]
                    for n in LENGTHS
                ],
                "nats, mean over seeds",
            )
            for arm in (V1, V2)
        ]
        return Measurement(effects, tables, heatmaps)


Gains = dict[tuple[str, float, str], Values]


def _by_noise(gains: Gains, arm: Arm) -> Values:
    return _mean(
        [difference(gains[arm.name, n, "near"], gains[arm.name, n, "far"]) for n in LENGTHS]
    )


def _by_length(gains: Gains, arm: Arm) -> Values:
    return _mean(
        [
            difference(gains[arm.name, LENGTHS[1], near], gains[arm.name, LENGTHS[0], near])
            for near in DISTRACTORS
        ]
    )


def _mean(cells: list[Values]) -> Values:
    """Return the mean over cells, by seed and example."""
    return [np.mean(seed, axis=0) for seed in zip(*cells, strict=True)]
