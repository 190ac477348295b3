"""Test 15: where does the noise term matter most."""

import numpy as np
from numpy.typing import NDArray

from antiphase.analysis.metrics import flow
from antiphase.analysis.metrics.dynamics import residual_cosine
from antiphase.analysis.statistics import bootstrap
from antiphase.experiments.arms import Trained
from antiphase.experiments.experiment import (
    V1,
    V2,
    Experiment,
    Measured,
    Picture,
    Shelf,
    Table,
    interval_row,
)
from antiphase.experiments.model_measurements import look
from antiphase.experiments.verdicts import Prediction

EDITS = {
    "knocked out": flow.knocked_out,
    "rank 1": flow.of_rank(1),
    "rank 4": flow.of_rank(4),
    "running mean": flow.running_mean,
}


def falls(trained: Trained, layer: int, edit: str = "knocked out") -> NDArray[np.float64]:
    """Return how far the answer's logit falls when a layer's noise is changed, by text."""
    seen = look(trained)
    change = flow.logit_change(trained.model(), seen.ids, seen.truth, EDITS[edit], layer)
    return change.mean(1).numpy()


class Layers(Experiment):
    """The answer's logit without each layer's noise term."""

    number = 15
    title = "Layer by layer"
    question = "Where does the noise term matter most for the answer?"
    quick = (V1, V2)
    arms = (V1, V2)
    predictions = (
        Prediction(
            "unchaining",
            "V1: logit lost without noise, last layer minus first",
            "above",
            0.5,
            "the analysis finds the largest benefit in the final layers",
        ),
        Prediction(
            "cancelling",
            "V1: logit lost without noise, mean over layers",
            "above",
            0.5,
            "if subtraction denoises, taking it away hurts the answer",
        ),
    )

    def measure(self, shelf: Shelf) -> Measured:
        layers = range(len(look(shelf[V1][0]).layers))
        lost = {
            arm.name: [shelf.values(arm, lambda t, i=i: falls(t, i)) for i in layers]  # type: ignore[misc]
            for arm in self.arms
        }
        first, last = lost["V1"][0], lost["V1"][-1]
        effects = {
            "V1: logit lost without noise, last layer minus first": [
                b - a for a, b in zip(first, last, strict=True)
            ],
            "V1: logit lost without noise, mean over layers": [
                np.mean(seed, axis=0) for seed in zip(*lost["V1"], strict=True)
            ],
        }
        picture = Picture(
            "Logit of the answer lost without a layer's noise",
            "layer",
            "logit",
            {n: [(i, bootstrap(v)) for i, v in enumerate(by)] for n, by in lost.items()},
            "bars",
        )
        rows = [
            interval_row(
                f"{arm.name}, layer {i}",
                *(shelf.values(arm, lambda t, i=i, e=edit: falls(t, i, e)) for edit in EDITS),  # type: ignore[misc]
                shelf.values(arm, lambda t, i=i: _forgets(t, i)),  # type: ignore[misc]
            )
            for arm in self.arms
            for i in layers
        ]
        columns = ["", *EDITS, "cosine of the noise term with the stream"]
        return Measured(effects, [Table("Logit lost when the noise is", columns, rows)], [picture])


def _forgets(trained: Trained, layer: int) -> NDArray[np.float64]:
    return residual_cosine(trained.model(), look(trained).ids)[layer].mean(1).double().numpy()
