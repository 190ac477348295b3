"""The learning rate over a run, as a share of its peak."""

import math

from antiphase.training.recipe import Recipe


def lr_share(step: int, recipe: Recipe) -> float:
    """Return the share of the peak rate at a step, counted from 0: up by warm-up, then down."""
    warmup = recipe.warmup if recipe.warmup >= 1 else recipe.warmup * recipe.steps
    if step < warmup:
        return (step + 1) / (warmup + 1)
    done = min(1.0, (step - warmup) / max(1.0, recipe.steps - warmup))
    low = recipe.final_lr
    if recipe.schedule == "constant":
        return 1.0
    if recipe.schedule == "linear":
        return 1.0 - (1.0 - low) * done
    if recipe.schedule == "cosine":
        return low + (1.0 - low) * 0.5 * (1.0 + math.cos(math.pi * done))
    fall = max(1e-9, recipe.decay)  # wsd: stable, then linear in the last share
    return 1.0 - (1.0 - low) * max(0.0, (done - (1.0 - fall)) / fall)
