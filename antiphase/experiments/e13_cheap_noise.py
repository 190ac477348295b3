"""Test 13: does cheap noise do; The noise is said to have a rank of 2 to 5."""

from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from antiphase.analysis.metrics import rank
from antiphase.experiments.accuracy_under_stress import STRESS, contest, gain
from antiphase.experiments.arms import Arm, Trained
from antiphase.experiments.experiment import (
    STANDARD,
    V1,
    Experiment,
    Measured,
    Shelf,
    Table,
    bars,
    base,
    interval_row,
)
from antiphase.experiments.model_measurements import answers, by_example, whole_maps
from antiphase.experiments.verdicts import Prediction
from antiphase.models.summary import summarise

LOW_DIM = Arm("low-dim noise", base("low_dim_noise"))
LOW_RANK = Arm("low-rank noise", base("low_rank_noise"))
FIXED = Arm("fixed noise", base("fixed_noise"))
PENALISED = Arm("V1, rank penalty", base("diff_v1", rank_penalty=0.01))
CHEAP = (LOW_DIM, LOW_RANK, FIXED, PENALISED)
UNDER = "each needle once"
LOW = 5.0  # the rank that the analysis claims
EFFECT = f"effective rank of V1's noise minus {LOW:g}"


MEASURES = {
    "effective rank": rank.effective_rank,
    "participation ratio": rank.participation_ratio,
    "rank at 90% energy": rank.energy_rank,
}


def ranks(trained: Trained, which: str, how: str = "effective rank") -> NDArray[np.float64]:
    """Return the rank of a map where causality adds none, by text."""
    found = [getattr(m, which) for m in whole_maps(trained)]
    return by_example([MEASURES[how](rank.lower_left(A.double())) for A in found if A is not None])


class CheapNoise(Experiment):
    """Low-dim, low-rank and fixed noise against V1, and V1 trained for a low rank."""

    number = 13
    version = 4
    title = "Cheap noise"
    question = "Is the noise of low rank, and does a cheap noise map do as well as a full one?"
    arms = (STANDARD, V1, *CHEAP)
    predictions = (
        Prediction("unchaining", EFFECT, "below", 0.5, "the analysis finds a rank of 2 to 5"),
        *(
            Prediction("unchaining", gain(arm, V1), "equal", 0.03, "cheap noise does as well")
            for arm in CHEAP
        ),
    )

    def measure(self, shelf: Shelf) -> Measured:
        found = contest(shelf, self.arms, [(arm, V1) for arm in CHEAP])
        arms = (V1, *CHEAP)
        found.effects[EFFECT] = shelf.values(V1, lambda t: ranks(t, "noise") - LOW)
        rows = [
            interval_row(
                f"{arm.name}: {how}",
                *(shelf.values(arm, partial(ranks, which=which, how=how)) for which in _MAPS),
            )
            for arm in arms
            for how in MEASURES
        ]
        found.pictures.append(
            bars(
                "Effective rank where causality adds none",
                "of at most 32",
                {
                    w: {a.name: shelf.values(a, partial(ranks, which=w)) for a in arms}
                    for w in _MAPS
                },
            )
        )
        found.tables.append(
            Table("Loss and cost", ["", *_COSTS], [_cost(shelf, a) for a in self.arms])
        )
        found.tables.append(
            Table("Rank, rows >= T/2 and columns < T/2 (at most 32)", ["", *_MAPS], rows)
        )
        return found


_MAPS = ("noise", "signal", "difference")
_COSTS = (f"loss, {UNDER}", "FLOPs a token at 64", "at 2048")


def _cost(shelf: Shelf, arm: Arm) -> list[str]:
    """Return the loss, and what one more token costs after so many others."""
    loss = shelf.values(arm, lambda t: answers(t, **STRESS[UNDER]).loss)
    config = shelf[arm][0].model().config
    flops = [summarise(config, context, torch.float32).flops for context in (64, 2048)]
    return [*interval_row(arm.name, loss), *(f"{f:,}" for f in flops)]
