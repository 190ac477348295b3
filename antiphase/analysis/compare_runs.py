"""Finished training runs side by side: one row per recipe, with intervals over its seeds."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open

from antiphase.analysis.statistics import Interval, student_t
from antiphase.training.recipe import Recipe, load_recipe
from antiphase.training.run_card import final_scores, summary_row


@dataclass(frozen=True)
class RunGroup:
    """The runs that differ in nothing but their seed."""

    title: str
    seeds: list[int]
    parameters: int
    scores: dict[str, Interval]


def compare_runs(folders: list[Path]) -> list[RunGroup]:
    """Group finished runs by their recipes, seeds apart.

    Args:
        folders: run folders with a recipe.yaml, a metrics.jsonl and a model.

    Returns:
        One group per recipe, with the scores that all of its runs have.

    Raises:
        ValueError: a run without scores, or two runs of the same recipe and seed.
    """
    found: dict[str, list[tuple[Recipe, Path]]] = {}
    for folder in folders:
        if not final_scores(folder):
            raise ValueError(f"{folder}: has no scores in its metrics.jsonl")
        recipe = load_recipe(str(folder / "recipe.yaml"))
        group = found.setdefault(recipe.changed(seed=0).digest(), [])
        for other, path in group:
            if other.seed == recipe.seed:
                raise ValueError(
                    f"{folder}: has the recipe and seed of {path}; one run would count twice"
                )
        group.append((recipe, folder))
    recipes = [runs[0][0] for runs in found.values()]
    return [_group(runs, recipes) for runs in found.values()]


def comparison_rows(groups: list[RunGroup]) -> tuple[list[str], list[list[str]]]:
    """Return the columns and one row per group; scores that not all groups have are left out."""
    names = [name for name in groups[0].scores if all(name in group.scores for group in groups)]
    rows = [
        [
            group.title,
            str(len(group.seeds)),
            f"{group.parameters:,}",
            *(group.scores[name].plus_minus() for name in names),
        ]
        for group in groups
    ]
    return ["run", "seeds", "parameters", *names], rows


def run_folders(folders: list[Path]) -> list[Path]:
    """Return run folders; the folder of a sweep or of a study gives those of all its runs."""
    found: list[Path] = []
    for folder in folders:
        if not (folder / "recipe.yaml").is_file() and (folder / "trained").is_dir():
            found += sorted(path.parent for path in folder.glob("trained/*/recipe.yaml"))
        else:
            found.append(folder)
    return found


def finished_runs(folders: list[Path]) -> tuple[list[Path], dict[Path, str]]:
    """Return the folders that hold a finished run, and for each other folder the reason."""
    others = {}
    for folder in folders:
        if not (folder / "recipe.yaml").is_file():
            others[folder] = "is no run (no recipe.yaml in it)"
        elif not (folder / "model" / "model.safetensors").is_file():
            others[folder] = f"has not finished; resume it with antiphase train --resume {folder}"
    return [folder for folder in folders if folder not in others], others


def flat_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """Return fields with those of inner dictionaries under names like `task_options.length`."""
    found: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, dict):
            found |= {f"{name}.{inner}": v for inner, v in value.items()}
        else:
            found[name] = value
    return found


def _group(runs: list[tuple[Recipe, Path]], recipes: list[Recipe]) -> RunGroup:
    rows = [summary_row(folder) for _, folder in runs]
    shared = [name for name in rows[0] if all(name in row for row in rows)]
    return RunGroup(
        title=_title(runs[0][0], recipes),
        seeds=[recipe.seed for recipe, _ in runs],
        parameters=_parameters(runs[0][1] / "model" / "model.safetensors"),
        scores={name: student_t([row[name] for row in rows]) for name in shared},
    )


def _title(recipe: Recipe, recipes: list[Recipe]) -> str:
    """Return the mechanism and every other field in which the runs differ."""
    every = [flat_fields(other.as_dict()) for other in recipes]
    mine = flat_fields(recipe.as_dict())
    differ = [
        name
        for name in mine
        if name not in ("attention", "method", "seed")
        and any(other.get(name) != mine[name] for other in every)
    ]
    return ", ".join([recipe.variant, *(f"{name}={mine[name]}" for name in differ)])


def _parameters(weights: Path) -> int:
    """Return the number of parameters, read from the file's header."""
    with safe_open(weights, "pt") as file:
        return sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
