"""Plans: what a study trains, on which seeds, and whether it needs a lock.

- QUICK: `antiphase lab`, minutes; three seeds and no tuning, so it is exploratory.
- PRIMARY: `antiphase lab --full`, hours; its predictions are locked before its first run.
"""

from dataclasses import dataclass

from antiphase.experiments.registry import EXPERIMENTS
from antiphase.experiments.tuning import Grid
from antiphase.training import Recipe, load_recipe


@dataclass(frozen=True)
class Plan:
    """What all arms of a study share, and how it is run.

    Attributes:
        id: name of the study; its lock belongs to it.
        recipe: what all arms share, except for the seed and what tuning chooses.
        tests: numbers of the tests.
        seeds: of the study's runs, which no other study and no tuning uses.
        grid: how arms are tuned; None for the recipe's learning rate and branch scale.
        locked: whether the study refuses to start without a lock.
    """

    id: str
    recipe: Recipe
    tests: tuple[int, ...]
    seeds: tuple[int, ...]
    grid: Grid | None = None
    locked: bool = False


_RECIPE = load_recipe("needle-lab")
_EASIER = {"length": 64, "keys": 8, "repeats": 3}
QUICK = Plan(
    "quick",
    _RECIPE.changed(
        task_options={**_RECIPE.task_options, **_EASIER},
        batch_size=32,
        steps=700,
        decay=0.231,  # 150 steps
    ),
    tuple(number for number, test in EXPERIMENTS.items() if test.quick),
    (0, 1, 2),
)
PRIMARY = Plan(
    "primary",
    _RECIPE,
    tuple(number for number, test in EXPERIMENTS.items() if test.primary),
    tuple(range(100, 108)),
    Grid(steps=400),
    locked=True,
)
