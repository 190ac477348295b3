"""Training: recipes and runs on the Hugging Face Trainer."""

from antiphase.training.adapter_trainer import SmallPartTrainer
from antiphase.training.recipe import Recipe, built_in, load_recipe
from antiphase.training.run import resume, train

__all__ = ["Recipe", "SmallPartTrainer", "built_in", "load_recipe", "resume", "train"]
