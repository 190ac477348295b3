"""Test 7, which separates the readings: context length against noise level."""

import numpy as np
from numpy.typing import NDArray

from antiphase.analysis.statistics import Values, difference
from antiphase.experiments.accuracy_under_stress import unlearned
from antiphase.experiments.arms import Arm, Trained
from antiphase.experiments.experiment import (
    STANDARD,
    V1,
    V2,
    Experiment,
    Heatmap,
    Measured,
    Shelf,
    Table,
    base,
    interval_row,
)
from antiphase.experiments.model_measurements import HARD, answers, pooled
from antiphase.experiments.verdicts import Prediction

LENGTHS = (64, 128, 256)
NEAR = (0.0, 0.5, 1.0)
ARMS = {
    ("standard", 64): STANDARD,
    ("V1", 64): V1,
    ("V2", 64): V2,
} | {
    (name, length): Arm(f"{name}, length {length}", base(attention, length))
    for name, attention in (("standard", "standard"), ("V1", "diff_v1"), ("V2", "diff_v2"))
    for length in LENGTHS[1:]
}
BY_NOISE = "gain of V1 over standard, near noise minus far, mean over lengths"
BY_LENGTH = "gain of V1 over standard, longest minus shortest, mean over noise"


def right(trained: Trained, near: float) -> NDArray[np.float64]:
    """Return right or wrong at a level of near noise, each needle once, by text."""
    return answers(trained, **HARD, near=near).right


class Grid(Experiment):
    """Length x noise, gain over standard in each cell."""

    number = 7
    version = 2
    title = "Length against noise"
    question = "Does the gain grow with noise at fixed length, or with length at fixed noise?"
    arms = tuple(ARMS.values())
    predictions = (
        Prediction("cancelling", BY_NOISE, "above", 0.02, "a slope along noise at fixed length"),
        Prediction("sparsity", BY_LENGTH, "above", 0.02, "a slope along length at fixed noise"),
        Prediction("sparsity", BY_NOISE, "equal", 0.02, "no slope along noise"),
    )

    def measure(self, shelf: Shelf) -> Measured:
        def cell(name: str, length: int, near: float) -> Values:
            one, other = ARMS[name, length], ARMS["standard", length]
            return shelf.gain(one, other, lambda t: right(t, near))

        gains = {
            (name, length, near): cell(name, length, near)
            for name in ("V1", "V2")
            for length in LENGTHS
            for near in NEAR
        }
        noise = [difference(gains["V1", n, NEAR[-1]], gains["V1", n, NEAR[0]]) for n in LENGTHS]
        length = [
            difference(gains["V1", LENGTHS[-1], near], gains["V1", LENGTHS[0], near])
            for near in NEAR
        ]
        effects = {BY_NOISE: _mean(noise), BY_LENGTH: _mean(length)}
        rows = [
            interval_row(
                f"{name}, length {n}",
                *(shelf.values(ARMS[name, n], lambda t, x=near: right(t, x)) for near in NEAR),  # type: ignore[misc]
            )
            for name in ("standard", "V1", "V2")
            for n in LENGTHS
        ]
        columns = ["", *(f"near noise {near:g}" for near in NEAR)]
        maps = [
            Heatmap(
                f"Accuracy of {name} minus that of standard",
                "near noise",
                "length",
                [f"{near:g}" for near in NEAR],
                [str(n) for n in LENGTHS],
                [[pooled(list(gains[name, n, near])) for near in NEAR] for n in LENGTHS],
            )
            for name in ("V1", "V2")
        ]
        never = unlearned(shelf, self.arms, lambda t: right(t, 0.0))
        return Measured(effects, [Table("Accuracy", columns, rows)], list(maps), never)


def _mean(cells: list[Values]) -> Values:
    return [np.mean(seed, axis=0) for seed in zip(*cells, strict=True)]
