"""Test 26: follow-up on cheap noise: low rank by training, and noise that is no map of a query.

Test 13 found a rank of 26 in V1's noise maps, far above the published 2 to 5, and that low-rank
noise does as well. Here V1 itself is trained towards a low rank, and the noise of the cheapest form
is the same for all queries.
"""

from dataclasses import replace
from functools import partial

from antiphase.experiments.arms import STANDARD, V1, Arm
from antiphase.experiments.conditions import SYNTHETIC_CONDITIONS, SYNTHETIC_STRESS
from antiphase.experiments.contests import synthetic_contest
from antiphase.experiments.e13_cheap_noise import CheapNoiseTest, map_rank
from antiphase.experiments.experiment import Measurement
from antiphase.experiments.trained_models import TrainedModels
from antiphase.experiments.verdicts import Effect, Gate, Prediction

PENALISED = Arm("V1 with a rank penalty", "diff_v1", changes={"rank_penalty": 0.01})
FIXED_NOISE = Arm("fixed noise", "fixed_noise")
RANK = Effect("effective rank of A2", PENALISED.name)
TOOK_HOLD = Gate("manipulation", RANK, high=10.0)  # V1 has 26; 2 to 5 is claimed


def _if_the_rank_falls(prediction: Prediction) -> Prediction:
    return replace(prediction, gates=(*prediction.gates, TOOK_HOLD))


class RankPenaltyTest(CheapNoiseTest):
    """V1 with a penalty on the rank of its noise maps, and fixed noise, against V1."""

    version = 2
    conditions = SYNTHETIC_CONDITIONS
    stress = SYNTHETIC_STRESS
    arms = (STANDARD, V1, PENALISED, FIXED_NOISE)
    pairs = (
        (PENALISED, V1),
        (V1, PENALISED),
        (FIXED_NOISE, V1),
        (V1, FIXED_NOISE),
        (PENALISED, STANDARD),
        (FIXED_NOISE, STANDARD),
    )
    predictions = (
        _if_the_rank_falls(
            synthetic_contest(
                "unchaining", PENALISED, V1, "no worse", "noise of low rank is enough", primary=True
            )
        ),
        synthetic_contest("unchaining", FIXED_NOISE, V1, "no worse", "noise of rank 1 is enough"),
        synthetic_contest(
            "cancelling",
            V1,
            FIXED_NOISE,
            "more",
            "noise that is the same for all queries is not the noise of any of them",
            primary=True,
            in_noise=True,
        ),
        _if_the_rank_falls(
            synthetic_contest(
                "cancelling",
                V1,
                PENALISED,
                "more",
                "the noise has more patterns than that",
                in_noise=True,
            )
        ),
    )

    def measure(self, models: TrainedModels) -> Measurement:
        found = super().measure(models)
        found.effects[RANK] = models.values(PENALISED, partial(map_rank, which="noise"))
        return found
