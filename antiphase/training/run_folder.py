"""The folder of a run that was given none."""

from pathlib import Path

from antiphase.training.recipe import Recipe


def default_run_folder(recipe: Recipe, source: str | None = None) -> Path:
    """Return `runs/NAME-VARIANT-SEED`, with the name of the recipe's source or else its task."""
    name = Path(source).stem if source else recipe.task
    return Path("runs") / f"{name}-{recipe.variant}-{recipe.seed}"


def default_unchain_folder(model: str, method: str) -> Path:
    """Return `runs/unchain/MODEL-METHOD`."""
    return Path("runs/unchain") / f"{Path(model).resolve().name}-{method}"
