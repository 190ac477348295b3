"""Test 11: which mechanisms do without attention sinks."""

import numpy as np
from numpy.typing import NDArray

from antiphase.analysis.metrics.sinks import outliers, sink_mass
from antiphase.experiments.arms import Arm, Trained
from antiphase.experiments.experiment import (
    STANDARD,
    V1,
    V2,
    Experiment,
    Measured,
    Shelf,
    Table,
    bars,
    base,
    interval_row,
)
from antiphase.experiments.model_measurements import by_example, look
from antiphase.experiments.verdicts import Prediction

GATED = Arm("gated", base("gated"))
OFF_BY_ONE = Arm("off by one", base("sink"))


def on_first(trained: Trained) -> NDArray[np.float64]:
    """Return the share of the maps on the first token, by text."""
    seen = look(trained)
    return by_example([sink_mass(m.difference, seen.truth) for m in seen.layers])


def outlier(trained: Trained, of: str, which: str) -> NDArray[np.float64]:
    """Return a largest or median magnitude of logits or hidden states: one number a model."""
    seen = look(trained).captured
    if of == "hidden":
        return np.array([max(outliers(h)[which] for h in seen.hidden[1:])])
    return np.array([max(outliers(s)[which] for m in seen.layers for s in m.scores)])


class Sinks(Experiment):
    """Mass on the first token, and outliers."""

    number = 11
    version = 3
    title = "Sinks"
    question = "Does differential attention do without sinks, and who else does?"
    quick = (STANDARD, V1, V2)
    arms = (STANDARD, V1, V2, GATED, OFF_BY_ONE)
    predictions = (
        Prediction(
            "unchaining",
            "mass on the first token, V1 minus standard",
            "below",
            0.03,
            "a head that may give nothing needs no place to put its mass",
        ),
        Prediction(
            "unchaining",
            "mass on the first token, V2 minus standard",
            "below",
            0.03,
            "a head that may give nothing needs no place to put its mass",
        ),
    )

    def measure(self, shelf: Shelf) -> Measured:
        effects = {
            f"mass on the first token, {arm.name} minus standard": shelf.gain(
                arm, STANDARD, on_first
            )
            for arm in (V1, V2)
        }
        rows = [
            interval_row(
                arm.name,
                shelf.values(arm, on_first),
                *(
                    shelf.values(arm, lambda t, o=of, w=which: outlier(t, o, w))  # type: ignore[misc]
                    for of in ("logits", "hidden")
                    for which in ("top-1", "top-10", "median")
                ),
            )
            for arm in self.arms
            if arm in shelf
        ]
        columns = [
            "",
            "mass on the first token",
            "logits top-1",
            "top-10",
            "median",
            "hidden states top-1",
            "top-10",
            "median",
        ]
        here = {arm.name: shelf.values(arm, on_first) for arm in self.arms if arm in shelf}
        picture = bars("Mass on the first token", "share of |A|", {"": here})
        return Measured(effects, [Table("Sinks and outliers", columns, rows)], [picture])
