"""The folder of a run that was given none."""

from pathlib import Path

from antiphase.training.recipe import Recipe


def recipe_name(source: str) -> str:
    """Return the name of a recipe: a built-in's own, which may have a dot, or a file's stem."""
    path = Path(source)
    return path.stem if path.suffix in (".yaml", ".yml") else path.name


def default_run_folder(recipe: Recipe, source: str | None = None) -> Path:
    """Return `runs/NAME-VARIANT-SEED`, with the name of the recipe's source or else its task."""
    name = recipe_name(source) if source else recipe.task
    return Path("runs") / f"{name}-{recipe.variant}-{recipe.seed}"


def default_unchain_folder(model: str, method: str) -> Path:
    """Return `runs/unchain/MODEL-METHOD`."""
    return Path("runs/unchain") / f"{Path(model).resolve().name}-{method}"
