"""Test 27: follow-up on foreign noise: a second map from frozen random weights.

Test 6 found that a noise map of another sequence does no worse than V1's own. Its W_Q2 and W_K2 are
trained; here nothing of the second map is, and its logits have a standard deviation of 1.
"""

from dataclasses import replace
from functools import partial

from antiphase.experiments.arms import FOREIGN_NOISE, STANDARD, V1, Arm
from antiphase.experiments.conditions import SYNTHETIC_CONDITIONS, SYNTHETIC_STRESS
from antiphase.experiments.contests import compare_synthetic, synthetic_contest
from antiphase.experiments.e01_agreement import CORRELATION, agreement
from antiphase.experiments.experiment import Experiment, Measurement, Table, interval_row
from antiphase.experiments.trained_models import TrainedModels
from antiphase.experiments.verdicts import Effect, Gate

RANDOM_NOISE = Arm("random noise", "foreign_noise", {"form": "random"})
COMMON = Effect(CORRELATION, RANDOM_NOISE.name, condition=SYNTHETIC_STRESS.name)
# half of what V1's maps have in the primary study, 0.2
NOTHING_COMMON = Gate("manipulation", COMMON, high=0.1)


class RandomNoiseTest(Experiment):
    """Both forms of foreign noise against V1."""

    conditions = SYNTHETIC_CONDITIONS
    arms = (STANDARD, V1, FOREIGN_NOISE, RANDOM_NOISE)
    predictions = tuple(
        replace(prediction, gates=(*prediction.gates, NOTHING_COMMON))
        for prediction in (
            synthetic_contest(
                "cancelling",
                V1,
                RANDOM_NOISE,
                "more",
                "a random map has no noise in common to remove",
                primary=True,
                in_noise=True,
            ),
            synthetic_contest(
                "unchaining",
                RANDOM_NOISE,
                V1,
                "no worse",
                "any second map leaves the simplex (sparsity predicts the same)",
                primary=True,
            ),
        )
    )

    def measure(self, models: TrainedModels) -> Measurement:
        pairs = [(V1, RANDOM_NOISE), (V1, FOREIGN_NOISE), (FOREIGN_NOISE, RANDOM_NOISE)]
        pairs += [(other, one) for one, other in pairs]
        pairs += [(arm, STANDARD) for arm in self.arms[1:]]
        found = compare_synthetic(models, self.arms, pairs)
        on_noise = partial(agreement, kind="irrelevant", condition=SYNTHETIC_STRESS)
        common = {arm.name: models.values(arm, on_noise) for arm in self.arms[1:]}
        found.effects[COMMON] = common[RANDOM_NOISE.name]
        rows = [interval_row(name, values) for name, values in common.items()]
        title = f"Agreement of A1 and A2 in retrieval heads, {SYNTHETIC_STRESS.name}"
        found.tables.append(Table(title, ["", CORRELATION], rows))
        return found
