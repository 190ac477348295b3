"""Runs side by side: a table with intervals over seeds, and their curves in one picture."""

import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open

from antiphase.training.recipe import Recipe, load_recipe
from antiphase.training.run_card import final_scores, summary_row

# Two-sided 95% quantiles of Student's t by degrees of freedom; the last stands for more, too.
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


@dataclass(frozen=True)
class Interval:
    """A mean over seeds and half the width of its 95% interval; NaN with one seed."""

    mean: float
    half: float

    def __str__(self) -> str:
        return f"{self.mean:.4g}" + ("" if math.isnan(self.half) else f" ± {self.half:.2g}")


@dataclass(frozen=True)
class Group:
    """The runs that differ in nothing but their seed."""

    title: str
    seeds: list[int]
    parameters: int
    scores: dict[str, Interval]


def compare(folders: list[Path]) -> list[Group]:
    """Return ended runs grouped by their recipes, seeds apart."""
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


def ended_runs(folders: list[Path]) -> tuple[list[Path], dict[Path, str]]:
    """Return the runs among these folders that have ended, and why the others are none of them."""
    others = {}
    for folder in folders:
        if not (folder / "recipe.yaml").is_file():
            others[folder] = "is no run (no recipe.yaml in it)"
        elif not (folder / "model" / "model.safetensors").is_file():
            others[folder] = "has not ended yet; go on with antiphase train --resume"
    return [folder for folder in folders if folder not in others], others


def _group(runs: list[tuple[Recipe, Path]], recipes: list[Recipe]) -> Group:
    rows = [summary_row(folder) for _, folder in runs]
    shared = [name for name in rows[0] if all(name in row for row in rows)]
    return Group(
        title=_title(runs[0][0], recipes),
        seeds=[recipe.seed for recipe, _ in runs],
        parameters=_count(runs[0][1] / "model" / "model.safetensors"),
        scores={name: interval([row[name] for row in rows]) for name in shared},
    )


def interval(values: list[float]) -> Interval:
    """Return the mean and the half width of its 95% interval."""
    mean, n = statistics.fmean(values), len(values)
    if n < 2:
        return Interval(mean, math.nan)
    t = _T95[min(n - 2, len(_T95) - 1)]
    return Interval(mean, t * statistics.stdev(values) / math.sqrt(n))


def _title(recipe: Recipe, recipes: list[Recipe]) -> str:
    """Return the mechanism and every other field in which the runs differ."""
    flat = [_flat(r) for r in recipes]
    mine = _flat(recipe)
    differ = [
        name
        for name in mine
        if name not in ("attention", "seed") and any(r.get(name) != mine[name] for r in flat)
    ]
    return ", ".join([recipe.attention, *(f"{name}={mine[name]}" for name in differ)])


def _flat(recipe: Recipe) -> dict[str, Any]:
    """Return the fields, those of inner dictionaries by their own names."""
    found: dict[str, Any] = {}
    for name, value in recipe.as_dict().items():
        if isinstance(value, dict):
            found |= {f"{name}.{inner}": v for inner, v in value.items()}
        else:
            found[name] = value
    return found


def _count(weights: Path) -> int:
    with safe_open(weights, "pt") as file:
        return sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
