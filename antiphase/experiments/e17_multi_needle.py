"""Test 17: several needles at once, by their number, their depth and the length of the haystack.

That the gain grows with the number of needles is not predicted: the accuracy of standard attention
does not depend on it here (docs/log.md), so there is nothing to gain.

The models are those of the study's own task. Distractors are far: needles that are not queried are
the only pairs whose keys could be asked for, so their number is the noise.
"""

from functools import partial

import numpy as np

from antiphase.experiments.arms import FOREIGN_NOISE, STANDARD, TOP_16, V1, V2, Arm
from antiphase.experiments.conditions import AS_TRAINED, ChangedTask
from antiphase.experiments.contests import (
    SYNTHETIC_SIZE,
    contest,
    gains_and_rooms,
    learned_effects,
    noise_contests,
    noise_effect,
    noise_pairs,
)
from antiphase.experiments.experiment import (
    Experiment,
    Figure,
    Heatmap,
    Measurement,
    Table,
    bar_chart,
    interval_row,
)
from antiphase.experiments.model_measurements import accuracy_of_all_questions
from antiphase.experiments.trained_models import TrainedModels

ARMS = {arm.name: arm for arm in (STANDARD, V1, V2, TOP_16, FOREIGN_NOISE)}
LENGTHS, OF_COUNTS = (1.0, 1.5, 2.0), 1.75  # times the length in training
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
COUNTS = {  # N needles, R queried, as in the published table
    (n, r): ChangedTask(
        f"{n} needle{'s' if n > 1 else ''}, {r} queried, {OF_COUNTS:g}x length",
        OF_COUNTS,
        options=(("needles", n), ("queried", r)),
    )
    for n, r in ((1, 1), (2, 2), (4, 2), (6, 2))
}
BY_DEPTH = {
    (length, depth): ChangedTask(
        f"8 needles, 1 queried at depth {depth:.0%}, {length:g}x length",
        length,
        options=(("needles", 8), ("depth", depth)),
    )
    for length in LENGTHS
    for depth in DEPTHS
}
MANY = COUNTS[6, 2]
EARLY = BY_DEPTH[LENGTHS[-1], 0.25]  # where the published gap is largest


class MultiNeedleTest(Experiment):
    """Accuracy by number of needles, and by depth and length."""

    arms = tuple(ARMS.values())
    conditions = (AS_TRAINED, *COUNTS.values(), *BY_DEPTH.values())
    predictions = (
        *noise_contests(ARMS, MANY, "other needles are noise", SYNTHETIC_SIZE),
        contest(
            "cancelling",
            V1,
            STANDARD,
            "more",
            "noise adds up over all tokens after an early needle",
            stress=EARLY,
            size=SYNTHETIC_SIZE,
            in_noise=True,
        ),
        contest(
            "sparsity",
            TOP_16,
            V1,
            "no worse",
            "any sparse attention would do",
            primary=True,
            stress=MANY,
            size=SYNTHETIC_SIZE,
        ),
    )

    def measure(self, models: TrainedModels) -> Measurement:
        effects = learned_effects(models, self.arms)
        pairs = [*noise_pairs(ARMS), (TOP_16, V1)]
        for stress in (*COUNTS.values(), EARLY):
            every = partial(accuracy_of_all_questions, condition=stress)
            effects |= gains_and_rooms(models, self.arms, pairs, stress, every)
        for stress in (MANY, EARLY):
            effects |= noise_effect(models, STANDARD, stress)
        by_count = {
            condition.name: {
                arm.name: models.values(
                    arm, partial(accuracy_of_all_questions, condition=condition)
                )
                for arm in self.arms
            }
            for condition in COUNTS.values()
        }
        rows = [
            interval_row(arm.name, *(cells[arm.name] for cells in by_count.values()))
            for arm in self.arms
        ]
        title = "Accuracy by number of needles, far distractors"
        figures: list[Figure] = [bar_chart(title, "fraction correct", by_count)]
        figures += [_by_depth(models, arm) for arm in self.arms]
        return Measurement(effects, [Table(title, ["", *by_count], rows)], figures)


def _by_depth(models: TrainedModels, arm: Arm) -> Heatmap:
    def mean(condition: ChangedTask) -> float:
        values = models.values(arm, partial(accuracy_of_all_questions, condition=condition))
        return float(np.mean([seed.mean() for seed in values]))

    return Heatmap(
        f"Accuracy of {arm.name} by depth and length, 8 needles",
        "depth of the queried needle",
        "times the length in training",
        [f"{depth:.0%}" for depth in DEPTHS],
        [f"{length:g}" for length in LENGTHS],
        [[mean(BY_DEPTH[length, depth]) for depth in DEPTHS] for length in LENGTHS],
        "fraction correct, mean over seeds",
    )
