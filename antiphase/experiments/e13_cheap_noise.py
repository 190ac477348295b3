"""Test 13: whether a cheap noise map is enough; the noise is said to have rank 2 to 5."""

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

import torch

from antiphase.analysis.metrics import rank
from antiphase.experiments.arms import LOW_RANK_NOISE, STANDARD, V1, Arm
from antiphase.experiments.conditions import STRESS, Condition
from antiphase.experiments.contests import compare, contest
from antiphase.experiments.experiment import (
    Cell,
    Experiment,
    Measurement,
    Table,
    bar_chart,
    interval_row,
)
from antiphase.experiments.model_measurements import (
    Numbers,
    answer_loss,
    by_example,
    complete_maps,
)
from antiphase.experiments.trained_models import TrainedModel, TrainedModels
from antiphase.experiments.verdicts import Effect, Prediction, learned
from antiphase.models.summary import summarise

CLAIMED_RANK = 5.0  # at most, by the published analysis
RANK = Effect(f"{CLAIMED_RANK:g} minus the effective rank of A2", V1.name)

METRICS = {
    "effective rank": rank.effective_rank,
    "participation ratio": rank.participation_ratio,
    "rank at 90% energy": rank.energy_rank,
}
MAPS = {"A2": "noise", "A1": "signal", "A1 - lam A2": "difference"}
BLOCK = "rows >= T/2 and columns < T/2"


def map_rank(model: TrainedModel, which: str, metric: str = "effective rank") -> Numbers:
    """Return the rank of the `noise`, `signal` or `difference` map, by example."""
    found = [getattr(m, which) for m in complete_maps(model)]
    ranks = [METRICS[metric](rank.lower_left(A.double())) for A in found if A is not None]
    return by_example(ranks)


def rank_below_claim(model: TrainedModel) -> Numbers:
    """Return how far the effective rank of A2 is below the largest that was published."""
    return CLAIMED_RANK - map_rank(model, "noise")


class CheapNoiseTest(Experiment):
    """Low-rank noise against V1, and the rank of V1's own noise maps."""

    version = 7
    stress: ClassVar[Condition] = STRESS
    arms: ClassVar[Sequence[Arm]] = (STANDARD, V1, LOW_RANK_NOISE)
    pairs: ClassVar[Sequence[tuple[Arm, Arm]]] = ((LOW_RANK_NOISE, V1), (LOW_RANK_NOISE, STANDARD))
    predictions: ClassVar[Sequence[Prediction]] = (
        contest(
            "unchaining", LOW_RANK_NOISE, V1, "no worse", "cheap noise does as well", primary=True
        ),
        Prediction(
            "unchaining",
            RANK,
            "more",
            0.5,
            "the analysis finds a rank of 2 to 5",
            (learned(V1.name),),
        ),
    )

    def measure(self, models: TrainedModels) -> Measurement:
        found = compare(
            models, self.arms, self.pairs, conditions=self.conditions, stress=self.stress
        )
        arms = self.arms[1:]  # with a noise map
        found.effects[RANK] = models.values(V1, rank_below_claim)
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
            Table(
                "Loss and cost",
                ["", f"loss, {self.stress.name}", *COSTS],
                [_cost(models, arm, self.stress) for arm in self.arms],
            ),
            Table(f"Rank, {BLOCK}", ["", *MAPS], rows),
        ]
        return found


COSTS = ("FLOPs per token at 128", "at 2048")


def _cost(models: TrainedModels, arm: Arm, stress: Condition) -> list[Cell]:
    """Return the loss, and the FLOPs of one more token at two context lengths."""
    config = models[arm][0].config
    flops = [summarise(config, context, torch.float32).flops for context in (128, 2048)]
    loss = models.values(arm, partial(answer_loss, condition=stress))
    return [*interval_row(arm.name, loss), *(f"{f:,}" for f in flops)]
