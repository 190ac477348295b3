"""Test 20: the held-out loss of differential and standard attention on text, at one size.

A study has one size; the ladder is made of several studies of this test.
"""

import numpy as np

from antiphase.analysis.statistics import Values, seed_interval
from antiphase.experiments.arms import STANDARD, V1, V2, Arm
from antiphase.experiments.e02_fixed_lambda import learned_lambda
from antiphase.experiments.experiment import (
    Cell,
    Chart,
    Experiment,
    Figure,
    Measurement,
    Table,
    bar_chart,
    interval_row,
)
from antiphase.experiments.text_measurements import (
    fraction_of_hits,
    held_out_loss,
    loss_along_training,
    loss_on_hits,
    loss_on_rest,
)
from antiphase.experiments.trained_models import TrainedModels
from antiphase.experiments.verdicts import Effect, Prediction

LOSS = "held-out loss"
MINUS = f"minus {STANDARD.name}"
SIZE = 0.02  # nats per token; the published gaps are 0.025 to 0.032
ARMS = (V1, V2)


def loss_gain(arm: Arm, baseline: Arm = STANDARD) -> Effect:
    """Return the key of the loss that an arm saves."""
    return Effect(LOSS, baseline.name, versus=arm.name)


def recall_gain(arm: Arm) -> Effect:
    """Return the key of how much more an arm saves on recall hits than on the rest."""
    return Effect("saved on recall hits minus saved on the rest", arm.name)


class LadderTest(Experiment):
    """Loss in total, along training, and on tokens that the context has shown."""

    version = 2
    by_model = True
    arms = (STANDARD, *ARMS)
    predictions = tuple(
        Prediction(
            "quality",
            effect,
            "more",
            SIZE,
            because,
            primary=effect == loss_gain(V1),
        )
        for arm in ARMS
        for effect, because in (
            (loss_gain(arm), "it is said to have a lower loss at equal parameters and tokens"),
            (recall_gain(arm), "it is said to gain most where the context holds the answer"),
        )
    )

    def measure(self, models: TrainedModels) -> Measurement:
        """Measure the losses of all arms."""
        effects: dict[Effect, Values] = {}
        for arm in ARMS:
            effects[loss_gain(arm)] = models.gain(STANDARD, arm, held_out_loss)
            on_hits = models.gain(STANDARD, arm, loss_on_hits)
            on_rest = models.gain(STANDARD, arm, loss_on_rest)
            effects[recall_gain(arm)] = [a - b for a, b in zip(on_hits, on_rest, strict=True)]
        tables = [loss_table(models, self.arms), learned_lambda(models, V1)]
        return Measurement(effects, tables, self._figures(models))

    def _figures(self, models: TrainedModels) -> list[Figure]:
        losses = {arm.name: models.values(arm, held_out_loss) for arm in self.arms}
        return [
            bar_chart("Held-out loss", "nats per token", {"": losses}),
            loss_lead_chart(models, ARMS),
        ]


def loss_table(models: TrainedModels, arms: tuple[Arm, ...]) -> Table:
    """Return the losses of arms: in total, minus that of STANDARD, on recall hits, on the rest."""
    rows: list[list[Cell]] = []
    for arm in arms:
        measures = (loss_on_hits, loss_on_rest, fraction_of_hits)
        name, *parts = interval_row(arm.name, *(models.values(arm, m) for m in measures))
        rows.append([name, *loss_cells(models, arm), *parts])
    columns = ["", "loss", MINUS, "on recall hits", "on the rest", "fraction of hits"]
    note = (
        "Nats per token on the test split; differences are paired by seed and sequence. A hit "
        "completes four tokens that occurred before."
    )
    return Table("Held-out loss", columns, rows, note)


def loss_cells(models: TrainedModels, arm: Arm) -> list[Cell]:
    """Return the held-out loss of an arm, and that minus the loss of STANDARD."""
    loss = seed_interval(models.values(arm, held_out_loss))
    if arm == STANDARD:
        return [loss, ""]
    return [loss, seed_interval(models.gain(arm, STANDARD, held_out_loss))]


def loss_lead_chart(models: TrainedModels, arms: tuple[Arm, ...]) -> Chart:
    """Return how much lower the loss is than standard's, along training (validation split)."""
    series = {}
    baseline = [loss_along_training(model) for model in models[STANDARD]]
    for arm in arms:
        mine = [loss_along_training(model) for model in models[arm]]
        series[arm.name] = [
            (
                tokens,
                seed_interval(
                    [np.array([b[tokens] - m[tokens]]) for b, m in zip(baseline, mine, strict=True)]
                ),
            )
            for tokens in baseline[0]
        ]
    return Chart("Loss of standard minus that of the arm", "tokens", "nats per token", series)
