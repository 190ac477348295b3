"""Sweeps: many runs of one recipe, over values of its fields and over seeds.

A sweep is a list of recipes. `grid` makes one from values by field, `load_sweep` from a YAML file:

    attention: [standard, diff_v1, diff_v2]
    task_options.noise: [0.5, 1.0]
    lr: 2.0e-3
    seeds: [0, 1, 2]

Lists are combined, single values hold for all runs. A field that is itself a list is a list of
lists. A file can also hold a list of such grids, whose runs are joined.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from antiphase.experiments.arms import TrainingRun
from antiphase.experiments.engine import Engine
from antiphase.experiments.train_all import longest_first, train_all
from antiphase.training.recipe import Recipe, change_settings

SEEDS = "seeds"


@dataclass(frozen=True)
class Sweep:
    """What a sweep has trained.

    Attributes:
        finished: folders of the finished runs, in the order of the sweep.
        errors: messages of the failed runs, by their title.
    """

    finished: list[Path]
    errors: dict[str, str]


def grid(recipe: Recipe, values: Mapping[str, Any]) -> list[Recipe]:
    """Return a recipe for every combination of values.

    Args:
        recipe: to start from.
        values: by field (`lr`), by option inside a field (`task_options.noise`), and `seeds`; a
            list of values to try, or one value.

    Returns:
        The recipes, seeds varying fastest. Runs share the cores, so each has one thread unless
        `threads` is set.

    Raises:
        ValueError: a field does not exist, has no values, or a value is invalid.
    """
    if SEEDS in values and "seed" in values:
        raise ValueError("sweep: gives both seed and seeds; leave out one")
    names = [name for name in values if name != SEEDS]
    choices = [values[name] if isinstance(values[name], list) else [values[name]] for name in names]
    if SEEDS in values:
        seeds = values[SEEDS]
        if not isinstance(seeds, (list, tuple)):
            raise ValueError(f"seeds: got {seeds!r}, expected a list such as [0, 1, 2]")
        names, choices = [*names, "seed"], [*choices, list(seeds)]
    if empty := [name for name, tried in zip(names, choices, strict=True) if not tried]:
        raise ValueError(f"sweep: {empty[0]} has no values; give at least one, or leave it out")
    recipe = recipe if recipe.threads else recipe.changed(threads=1)
    return [
        change_settings(recipe, dict(zip(names, chosen, strict=True)))
        for chosen in itertools.product(*choices)
    ]


def load_sweep(path: Path, recipe: Recipe) -> list[Recipe]:
    """Return the recipes of a YAML file with a grid, or with a list of grids.

    Args:
        path: of the file.
        recipe: that the grids change.

    Raises:
        ValueError: the file cannot be read, or describes no recipes.
    """
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"--sweep: {path} cannot be read ({error})") from error
    grids = found if isinstance(found, list) else [found]
    if not grids or not all(isinstance(values, dict) and values for values in grids):
        raise ValueError(
            f"--sweep: {path}: expected fields and their values, such as `lr: [1.0e-3, 2.0e-3]`, "
            f"or a list of such grids; got {found!r}"
        )
    try:
        return [one for values in grids for one in grid(recipe, values)]
    except ValueError as error:
        raise ValueError(f"--sweep: {path}: {error}") from error


def run_sweep(
    recipes: Sequence[Recipe], folder: Path, console: Console, engine: Engine | None = None
) -> Sweep:
    """Train the recipes of a sweep; what is finished is not repeated.

    Args:
        recipes: of the runs; equal ones are one run.
        folder: of the sweep; `trained/` in it holds the runs. Several sweeps can share it.
        console: where progress is shown.
        engine: performs the runs; default: all cores of this machine.

    Returns:
        The finished runs, and why others failed.
    """
    root = folder / "trained"
    runs = list({run.key: run for run in map(TrainingRun, recipes)}.values())
    errors = train_all(longest_first(runs), root, console, engine)
    return Sweep(
        [run.folder(root) for run in runs if run.finished(root)],
        {f"{run.title} ({run.key})": errors[run.key] for run in runs if run.key in errors},
    )
