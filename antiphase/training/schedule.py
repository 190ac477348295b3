"""The learning rate over a run, relative to its peak."""

import math

from antiphase.training.recipe import Recipe


def lr_factor(step: int, recipe: Recipe) -> float:
    """Return the learning rate of a step as a fraction of the peak.

    Args:
        step: counted from 0.
        recipe: with `schedule`, `warmup`, `steps`, `final_lr` and `decay`.

    Returns:
        A factor in (0, 1]: linear warm-up whose first step is above 0, then the schedule.
    """
    warmup = recipe.warmup if recipe.warmup >= 1 else recipe.warmup * recipe.steps
    if step < warmup:
        return (step + 1) / (warmup + 1)
    progress = min(1.0, (step - warmup) / max(1.0, recipe.steps - warmup))
    final = recipe.final_lr
    if recipe.schedule == "constant":
        return 1.0
    if recipe.schedule == "linear":
        return 1.0 - (1.0 - final) * progress
    if recipe.schedule == "cosine":
        return final + (1.0 - final) * 0.5 * (1.0 + math.cos(math.pi * progress))
    decay = max(1e-9, recipe.decay)  # wsd: constant, then linear in the last fraction
    return 1.0 - (1.0 - final) * max(0.0, (progress - (1.0 - decay)) / decay)
