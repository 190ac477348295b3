"""Training: recipes and runs on the Hugging Face Trainer.

Names are resolved on first use, so that listing the recipes imports neither torch nor transformers.
"""

from typing import TYPE_CHECKING

from antiphase.lazy_imports import lazy_names

if TYPE_CHECKING:
    from antiphase.training.adapter_trainer import AdapterTrainer
    from antiphase.training.callbacks import read_metrics
    from antiphase.training.criterion import Criterion, criterion_of
    from antiphase.training.provenance import environment
    from antiphase.training.recipe import Recipe, built_in, load_recipe
    from antiphase.training.run import create_run, resume, train

__all__ = [
    "AdapterTrainer",
    "Criterion",
    "Recipe",
    "built_in",
    "create_run",
    "criterion_of",
    "environment",
    "load_recipe",
    "read_metrics",
    "resume",
    "train",
]

__getattr__ = lazy_names(
    __name__,
    {
        "AdapterTrainer": "adapter_trainer",
        "Criterion": "criterion",
        "Recipe": "recipe",
        "built_in": "recipe",
        "create_run": "run",
        "criterion_of": "criterion",
        "environment": "provenance",
        "load_recipe": "recipe",
        "read_metrics": "callbacks",
        "resume": "run",
        "train": "run",
    },
)
