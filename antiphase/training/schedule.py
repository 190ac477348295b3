"""The learning rate over a run, relative to its peak."""

import math

from antiphase.training.recipe import Recipe


def warmup_steps(recipe: Recipe) -> int:
    """Return the number of steps of the warm-up."""
    return math.ceil(_warmup(recipe) - 1e-6)  # which tolerates rounding of a fraction


def decay_start(recipe: Recipe) -> int:
    """Return the number of steps before the decay of `wsd`, if it comes by the schedule."""
    remaining = max(0.0, recipe.steps - _warmup(recipe))
    return math.floor(recipe.steps - recipe.decay * remaining + 1e-6)


def lr_factor(step: int, recipe: Recipe, decay_from: int | None = None) -> float:
    """Return the learning rate of a step as a fraction of the peak.

    Args:
        step: counted from 0.
        recipe: with `schedule`, `warmup`, `steps`, `final_lr` and `decay`.
        decay_from: step at which the decay of `wsd` begins, if earlier than by the schedule; it has
            the same factors.

    Returns:
        A factor in (0, 1]: linear warm-up whose first step is above 0, then the schedule.
    """
    if decay_from is not None and step > decay_from:
        step += decay_start(recipe) - decay_from
    warmup = _warmup(recipe)
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


def _warmup(recipe: Recipe) -> float:
    return recipe.warmup if recipe.warmup >= 1 else recipe.warmup * recipe.steps
