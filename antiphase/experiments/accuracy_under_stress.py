"""Contests on accuracy: one arm against another where the task is hard.

Longer texts than in training, each needle once, and near noise: what a trained model is not
prepared for.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphase.experiments.arms import Arm, Trained
from antiphase.experiments.experiment import Measured, Shelf, Table, bars, interval_row
from antiphase.experiments.model_measurements import HARD, answers, pooled

STRESS: dict[str, dict[str, Any]] = {
    "as trained": {},
    "each needle once": {**HARD},
    "twice as long": {**HARD, "length": 128},
    "twice as long, near noise": {**HARD, "length": 128, "near": 1.0},
    "four times as long": {**HARD, "length": 256},
}

LEARNED = 0.9  # accuracy, mean over seeds


def accuracy(trained: Trained, under: str) -> NDArray[np.float64]:
    """Return right or wrong, by text."""
    return answers(trained, **STRESS[under]).right


def under_stress(trained: Trained) -> NDArray[np.float64]:
    """Return the mean accuracy over everything that is harder than training, by text number."""
    return np.mean([accuracy(trained, under) for under in list(STRESS)[1:]], axis=0)


def contest(shelf: Shelf, arms: Sequence[Arm], pairs: Sequence[tuple[Arm, Arm]]) -> Measured:
    """Return the gains of pairs under stress, and a table of all arms."""
    effects = {
        f"accuracy under stress, {one.name} minus {other.name}": shelf.gain(
            one, other, under_stress
        )
        for one, other in pairs
    }
    rows = [
        interval_row(
            arm.name,
            *(shelf.values(arm, lambda t, u=under: accuracy(t, u)) for under in STRESS),  # type: ignore[misc]
            shelf.values(arm, under_stress),
        )
        for arm in arms
    ]
    picture = bars(
        "Accuracy",
        "share right",
        {
            "as trained": {
                a.name: shelf.values(a, lambda t: accuracy(t, "as trained")) for a in arms
            },
            "under stress": {a.name: shelf.values(a, under_stress) for a in arms},
        },
    )
    table = Table("Accuracy", ["", *STRESS, "under stress, mean"], rows)
    never = unlearned(shelf, arms, lambda t: accuracy(t, "as trained"))
    return Measured(effects, [table], [picture], never)


def unlearned(
    shelf: Shelf, arms: Sequence[Arm], measure: Callable[[Trained], NDArray[np.float64]]
) -> list[str]:
    """Say which arms never learned the task: what is measured of them is not robustness."""
    never = [arm for arm in arms if pooled(shelf.values(arm, measure)) < LEARNED]
    if not never:
        return []
    names = "; ".join(arm.name for arm in never)
    return [
        f"Below {LEARNED:.0%} on the task as trained, after {never[0].recipe.steps} steps: "
        f"{names}. A comparison with these speaks of how fast they learn, not of noise."
    ]


def gain(one: Arm, other: Arm) -> str:
    """Return the name of an effect."""
    return f"accuracy under stress, {one.name} minus {other.name}"
