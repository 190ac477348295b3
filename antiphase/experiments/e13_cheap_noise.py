"""Test 13: whether a cheap noise map is enough; the noise is said to have rank 2 to 5."""

from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from antiphase.analysis.metrics import rank
from antiphase.experiments.accuracy_under_stress import (
    CONDITIONS,
    ONCE,
    compare_accuracy,
    contest_gates,
    stress_gain,
)
from antiphase.experiments.arms import STANDARD, V1, Arm, base_recipe
from antiphase.experiments.experiment import (
    Cell,
    Experiment,
    Measurement,
    Table,
    bar_chart,
    interval_row,
)
from antiphase.experiments.model_measurements import answers, by_example, complete_maps
from antiphase.experiments.trained_models import TrainedModel, TrainedModels
from antiphase.experiments.verdicts import Effect, Prediction
from antiphase.models.summary import summarise

LOW_DIM = Arm("low-dim noise", base_recipe("low_dim_noise"))
LOW_RANK = Arm("low-rank noise", base_recipe("low_rank_noise"))
FIXED = Arm("fixed noise", base_recipe("fixed_noise"))
PENALISED = Arm("V1 (rank penalty)", base_recipe("diff_v1", rank_penalty=0.01))
CHEAP = (LOW_DIM, LOW_RANK, FIXED, PENALISED)
CLAIMED_RANK = 5.0  # at most, by the published analysis
RANK = Effect(f"{CLAIMED_RANK:g} minus the effective rank of A2", V1.name)

METRICS = {
    "effective rank": rank.effective_rank,
    "participation ratio": rank.participation_ratio,
    "rank at 90% energy": rank.energy_rank,
}
MAPS = {"A2": "noise", "A1": "signal", "A1 - lam A2": "difference"}
BLOCK = "rows >= T/2 and columns < T/2 (at most 32)"


def map_rank(
    model: TrainedModel, which: str, metric: str = "effective rank"
) -> NDArray[np.float64]:
    """Return the rank of the `noise`, `signal` or `difference` map, by example."""
    found = [getattr(m, which) for m in complete_maps(model)]
    ranks = [METRICS[metric](rank.lower_left(A.double())) for A in found if A is not None]
    return by_example(ranks)


class CheapNoiseTest(Experiment):
    """Low-dim, low-rank and fixed noise against V1, and V1 trained with a rank penalty."""

    version = 5
    arms = (STANDARD, V1, *CHEAP)
    predictions = (
        Prediction(
            "unchaining", RANK, "more", 0.5, "the analysis finds a rank of 2 to 5", primary=True
        ),
        *(
            Prediction(
                "unchaining",
                stress_gain(arm, V1),
                "no worse",
                0.03,
                "cheap noise does as well",
                gates=contest_gates(arm.name, V1.name, 0.03),
            )
            for arm in CHEAP
        ),
    )

    def measure(self, models: TrainedModels) -> Measurement:
        found = compare_accuracy(models, self.arms, [(arm, V1) for arm in CHEAP])
        arms = (V1, *CHEAP)
        found.effects[RANK] = models.values(V1, lambda m: CLAIMED_RANK - map_rank(m, "noise"))
        rows = [
            interval_row(
                f"{arm.name}: {metric}",
                *(
                    models.values(arm, partial(map_rank, which=which, metric=metric))
                    for which in MAPS.values()
                ),
            )
            for arm in arms
            for metric in METRICS
        ]
        ranks = {
            name: {arm.name: models.values(arm, partial(map_rank, which=which)) for arm in arms}
            for name, which in MAPS.items()
        }
        found.figures.append(bar_chart(f"Effective rank, {BLOCK}", "rank", ranks))
        found.tables += [
            Table("Loss and cost", ["", *COSTS], [_cost(models, arm) for arm in self.arms]),
            Table(f"Rank, {BLOCK}", ["", *MAPS], rows),
        ]
        return found


COSTS = (f"loss, {ONCE}", "FLOPs per token at 64", "at 2048")


def _cost(models: TrainedModels, arm: Arm) -> list[Cell]:
    """Return the loss, and the FLOPs of one more token at two context lengths."""
    loss = models.values(arm, lambda m: answers(m, **CONDITIONS[ONCE]).loss)
    config = models[arm][0].load().config
    flops = [summarise(config, context, torch.float32).flops for context in (64, 2048)]
    return [*interval_row(arm.name, loss), *(f"{f:,}" for f in flops)]
