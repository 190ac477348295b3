"""Test 25: follow-up on the head norm, with one learned scalar in its place.

Test 8 found that norm and subtraction each add half of the gain. A norm per token changes the scale
of each head's output and how it varies over tokens; a scalar changes the scale alone.

The contests of test 8 are repeated, since their arms were tuned by the loss in the training
condition there and are tuned by errors under stress here.
"""

from antiphase.experiments.arms import STANDARD, STANDARD_NORM, V1, V1_NO_NORM, Arm
from antiphase.experiments.conditions import SYNTHETIC_CONDITIONS
from antiphase.experiments.contests import compare_synthetic, synthetic_contest
from antiphase.experiments.experiment import Experiment, Measurement
from antiphase.experiments.trained_models import TrainedModels

STANDARD_SCALAR = Arm("standard + scalar", "standard", {"head_norm": "scalar"})
V1_SCALAR = Arm("V1 with a scalar", "diff_v1", {"head_norm": "scalar"})


class ScalarTest(Experiment):
    """Standard attention and V1, each with a head norm, with one scalar, and with neither."""

    conditions = SYNTHETIC_CONDITIONS
    arms = (STANDARD, STANDARD_SCALAR, STANDARD_NORM, V1_NO_NORM, V1_SCALAR, V1)
    predictions = (
        synthetic_contest(
            "cancelling",
            V1_SCALAR,
            STANDARD_SCALAR,
            "more",
            "the subtraction removes noise, at any scale of the output",
            primary=True,
            in_noise=True,
        ),
        synthetic_contest(
            "unchaining",
            V1_SCALAR,
            V1,
            "no worse",
            "weights that leave the simplex need a scale, not a norm",
            primary=True,
        ),
        synthetic_contest(
            "unchaining", V1_SCALAR, V1_NO_NORM, "more", "without a norm the scale is lost"
        ),
        synthetic_contest(
            "cancelling",
            V1,
            STANDARD,
            "more",
            "noise is subtracted, both arms at their best",
            in_noise=True,
        ),
        synthetic_contest(
            "cancelling",
            V1,
            STANDARD_NORM,
            "more",
            "the norm alone removes no noise",
            in_noise=True,
        ),
        synthetic_contest(
            "unchaining",
            V1_NO_NORM,
            STANDARD,
            "more",
            "weights that leave the simplex help without any norm",
        ),
    )

    def measure(self, models: TrainedModels) -> Measurement:
        pairs = [
            (V1_SCALAR, STANDARD_SCALAR),
            (V1_SCALAR, V1),
            (V1_SCALAR, V1_NO_NORM),
            (STANDARD_SCALAR, STANDARD_NORM),
            (STANDARD_SCALAR, STANDARD),
            (V1, STANDARD),
            (V1, STANDARD_NORM),
            (V1_NO_NORM, STANDARD),
        ]
        return compare_synthetic(models, self.arms, pairs)
