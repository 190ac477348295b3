"""Test 6: what the subtraction must be. Controls that change one property of it by construction.

- signed mask: weights may be negative, without a second map;
- rectified: sparse, not negative; simplex: sparse and on the simplex. Both have no head norm, and
  are compared with V1 without one;
- foreign noise: a second map that has no noise in common with the first.
"""

from antiphase.experiments.arms import (
    FOREIGN_NOISE,
    RECTIFIED,
    SIGNED_MASK,
    SIMPLEX,
    STANDARD,
    V1,
    V1_NO_NORM,
)
from antiphase.experiments.contests import compare, contest
from antiphase.experiments.experiment import Experiment, Measurement
from antiphase.experiments.trained_models import TrainedModels

PAIRS = (
    (V1, FOREIGN_NOISE),
    (V1, SIGNED_MASK),
    (V1_NO_NORM, SIMPLEX),
    (V1_NO_NORM, RECTIFIED),
)


class SignedMaskTest(Experiment):
    """Signed mask, rectified, simplex and foreign noise."""

    version = 5
    arms = (STANDARD, V1, V1_NO_NORM, SIGNED_MASK, RECTIFIED, SIMPLEX, FOREIGN_NOISE)
    predictions = (
        contest(
            "cancelling",
            V1,
            FOREIGN_NOISE,
            "more",
            "a map of another sequence has no noise in common to remove",
            primary=True,
        ),
        contest("cancelling", V1, SIGNED_MASK, "more", "a sign cancels no common noise"),
        contest(
            "sparsity",
            SIMPLEX,
            V1_NO_NORM,
            "no worse",
            "a sparse map on the simplex is enough",
            primary=True,
        ),
        contest("sparsity", RECTIFIED, V1_NO_NORM, "no worse", "negative weights are not needed"),
        contest("sparsity", FOREIGN_NOISE, V1, "no worse", "any second map makes it sparse"),
        contest(
            "unchaining",
            V1_NO_NORM,
            SIMPLEX,
            "more",
            "back on the simplex, the gain is lost",
            primary=True,
        ),
        contest("unchaining", V1_NO_NORM, RECTIFIED, "more", "negative weights are needed"),
        contest("unchaining", SIGNED_MASK, V1, "no worse", "leaving the simplex is enough"),
        contest("unchaining", FOREIGN_NOISE, V1, "no worse", "any second map leaves the simplex"),
    )

    def measure(self, models: TrainedModels) -> Measurement:
        pairs = [pair for one, other in PAIRS for pair in ((one, other), (other, one))]
        pairs += [(arm, STANDARD) for arm in self.arms[1:]]
        return compare(models, self.arms, pairs)
