"""Training: recipes and runs on the Hugging Face Trainer."""

from typing import TYPE_CHECKING

from antiphase.lazy_imports import lazy_names

if TYPE_CHECKING:
    from antiphase.training.adapter_trainer import SmallPartTrainer
    from antiphase.training.recipe import Recipe, built_in, load_recipe
    from antiphase.training.run import resume, train

__all__ = ["Recipe", "SmallPartTrainer", "built_in", "load_recipe", "resume", "train"]

__getattr__ = lazy_names(
    __name__,
    {
        "Recipe": "recipe",
        "SmallPartTrainer": "adapter_trainer",
        "built_in": "recipe",
        "load_recipe": "recipe",
        "resume": "run",
        "train": "run",
    },
)
