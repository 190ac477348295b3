"""Test 5: are differential maps sparser than standard ones, and outside the simplex."""

from functools import partial

import numpy as np
from numpy.typing import NDArray

from antiphase.analysis.metrics import sparsity
from antiphase.experiments.arms import Trained
from antiphase.experiments.experiment import (
    STANDARD,
    V1,
    V2,
    Experiment,
    Measured,
    Shelf,
    Table,
    bars,
    interval_row,
)
from antiphase.experiments.model_measurements import by_example, look
from antiphase.experiments.verdicts import Prediction

MEASURES = {
    "entropy": sparsity.entropy,
    "Gini": sparsity.gini,
    "Hoyer": sparsity.hoyer,
    "share above 1/T": sparsity.share_above,
    "negative mass": sparsity.negative_mass,
    "largest weight": sparsity.max_weight,
    "outside [0, 1]": sparsity.outside,
}


def mean_of(name: str, trained: Trained) -> NDArray[np.float64]:
    """Return a measure of the maps that meet V, by text."""
    seen = look(trained)
    measure = MEASURES[name]
    return by_example([measure(m.difference, seen.truth.visible) for m in seen.layers])


class Sparsity(Experiment):
    """Concentration and sign of the maps that meet V."""

    number = 5
    version = 2
    title = "Sparsity"
    question = "Are differential maps sparser than standard ones, or do they leave the simplex?"
    quick = (STANDARD, V1, V2)
    arms = (STANDARD, V1, V2)
    predictions = (
        Prediction("sparsity", "Gini, V1 minus standard", "above", 0.05, "sparser rows"),
        Prediction("sparsity", "entropy, V1 minus standard", "below", 0.05, "sparser rows"),
        Prediction(
            "unchaining", "negative mass of V1", "above", 0.05, "weights that softmax cannot have"
        ),
        Prediction(
            "unchaining", "negative mass of V2", "above", 0.05, "weights that softmax cannot have"
        ),
    )

    def measure(self, shelf: Shelf) -> Measured:
        effects = {
            "Gini, V1 minus standard": shelf.gain(V1, STANDARD, lambda t: mean_of("Gini", t)),
            "entropy, V1 minus standard": shelf.gain(V1, STANDARD, lambda t: mean_of("entropy", t)),
            "negative mass of V1": shelf.values(V1, lambda t: mean_of("negative mass", t)),
            "negative mass of V2": shelf.values(V2, lambda t: mean_of("negative mass", t)),
        }
        rows = [
            interval_row(name, *(shelf.values(a, partial(mean_of, name)) for a in self.arms))
            for name in MEASURES
        ]
        columns = ["", *(arm.name for arm in self.arms)]
        picture = bars(
            "Rows of |A| that answer",
            "",
            {
                a.name: {n: shelf.values(a, partial(mean_of, n)) for n in MEASURES}
                for a in self.arms
            },
        )
        return Measured(effects, [Table("Rows of |A| that answer", columns, rows)], [picture])
