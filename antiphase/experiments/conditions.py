"""Conditions: the held-out sequences on which trained models are measured.

Training repeats each needle, so that a sequence has many questions. The other conditions show each
needle once, on sequences as long as in training or longer, whose distractors have keys that no
needle has (far), or keys of needles of other sequences (near).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from antiphase.training import Recipe


@dataclass(frozen=True)
class Condition:
    """How held-out sequences differ from those of training.

    Attributes:
        name: in tables and effects.
        length: times the length in training; 0 for sequences exactly as in training.
        near: fraction of the distractors that are near.
    """

    name: str
    length: float = 0
    near: float = 0.0

    def task_options(self, recipe: Recipe) -> dict[str, Any]:
        """Return the options of a recipe's task under this condition."""
        options = dict(recipe.task_options)
        if self.length:
            length = round(self.length * options["length"])
            options |= {"repeats": 0, "near": self.near, "length": length}
        return options


@dataclass(frozen=True)
class ChangedTask(Condition):
    """Held-out sequences with other options of the task.

    Attributes:
        options: names and values, on top of what `length` and `near` change.
    """

    options: tuple[tuple[str, Any], ...] = ()

    def task_options(self, recipe: Recipe) -> dict[str, Any]:
        """Return the options of a recipe's task under this condition."""
        return super().task_options(recipe) | dict(self.options)


Cell = tuple[float, str]
"""A cell of a grid: times the length in training, and which distractors."""

NEAR = {"far": 0.0, "half near": 0.5, "near": 1.0}


def grid(lengths: Sequence[float], distractors: Sequence[str]) -> dict[Cell, Condition]:
    """Return the conditions of all lengths with all kinds of distractors (names in NEAR)."""
    return {
        (length, near): Condition(f"{length:g}x length, {near} distractors", length, NEAR[near])
        for length in lengths
        for near in distractors
    }


AS_TRAINED = Condition("as trained")
LENGTHS, DISTRACTORS = (1.0, 1.5), ("far", "near")
GRID = grid(LENGTHS, DISTRACTORS)  # test 7 measures in all four cells
STRESS = GRID[1.5, "near"]  # where arms are compared, and attention noise is measured
CONDITIONS = (AS_TRAINED, *GRID.values())
# In the synthetic study, at the learning rates that suit errors under stress. With more distractors
# near, standard's retrieval heads have 0.6 of their mass on irrelevant tokens there (docs/log.md).
SYNTHETIC_STRESS = Condition("1.5x length, 25% near distractors", 1.5, 0.25)
SYNTHETIC_CONDITIONS = tuple(dict.fromkeys((*CONDITIONS, SYNTHETIC_STRESS)))
TWICE_AS_LONG = grid((2.0,), ("near",))[2.0, "near"]
UNANSWERABLE_STRESS = grid((2.5,), ("near",))[2.5, "near"]  # where such questions leave room
