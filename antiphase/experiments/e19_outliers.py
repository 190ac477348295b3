"""Test 19: outliers of activations, and attention logits in few bits, on models of text."""

from functools import partial

from antiphase.experiments.arms import STANDARD, V1, V2
from antiphase.experiments.experiment import (
    Experiment,
    Measurement,
    Table,
    bar_chart,
    interval_row,
)
from antiphase.experiments.text_measurements import low_bit_increase, outlier
from antiphase.experiments.trained_models import TrainedModels
from antiphase.experiments.verdicts import Effect, Prediction, room

BITS = (8, 6, 4)
FEWEST = f"{BITS[-1]} bits"
INCREASE = "increase of the loss"
SIZE = 0.02
COSTS_LESS = {
    arm.name: Effect(INCREASE, STANDARD.name, versus=arm.name, condition=FEWEST) for arm in (V1, V2)
}
STANDARD_COST = Effect(INCREASE, STANDARD.name, condition=FEWEST)


class OutliersTest(Experiment):
    """Largest attention logits and hidden states, and what few bits of the logits cost."""

    by_model = True
    arms = (STANDARD, V1, V2)
    predictions = tuple(
        Prediction(
            "quality",
            effect,
            "more",
            SIZE,
            "differential attention is said to have smaller outliers, and to need fewer bits",
            gates=(room(STANDARD_COST, SIZE),),
            primary=name == V1.name,
        )
        for name, effect in COSTS_LESS.items()
    )

    def measure(self, models: TrainedModels) -> Measurement:
        """Measure outliers, and the loss with quantised logits."""
        fewest = partial(low_bit_increase, bits=BITS[-1])
        effects = {COSTS_LESS[arm.name]: models.gain(STANDARD, arm, fewest) for arm in (V1, V2)}
        effects[STANDARD_COST] = models.values(STANDARD, fewest)
        places = [(of, which) for of in ("logits", "hidden") for which in ("top-1", "top-10")]
        places += [("logits", "median"), ("hidden", "median")]
        sizes = [
            interval_row(
                arm.name,
                *(models.values(arm, partial(outlier, of=o, which=w)) for o, w in places),
            )
            for arm in self.arms
        ]
        costs = {
            arm.name: [models.values(arm, partial(low_bit_increase, bits=b)) for b in BITS]
            for arm in self.arms
        }
        rows = [interval_row(name, *values) for name, values in costs.items()]
        tables = [
            Table("Largest and median magnitudes", ["", *map(", ".join, places)], sizes),
            Table(
                "Increase of the loss with attention logits of few bits",
                ["", *(f"{b} bits" for b in BITS)],
                rows,
                "Absmax quantisation per head and sequence; nats per token.",
            ),
        ]
        chart = bar_chart(
            "Increase of the loss",
            "nats",
            {
                f"{b} bits": {name: values[i] for name, values in costs.items()}
                for i, b in enumerate(BITS)
            },
        )
        return Measurement(effects, tables, [chart])
