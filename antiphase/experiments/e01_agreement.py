"""Test 1: do the two maps agree on noise, and less on signal."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from antiphase.analysis.metrics.cancellation import (
    correlation,
    disagreement,
    divergence,
    from_another_head,
)
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
from antiphase.experiments.model_measurements import Look, by_example, look
from antiphase.experiments.verdicts import Prediction

Compare = Callable[[Tensor, Tensor, Tensor], Tensor]


def on(seen: Look, kind: str, compare: Compare, null: bool = False) -> NDArray[np.float64]:
    """Return how two maps compare on I or R, by text; the null takes the other from a neighbour."""
    where = getattr(seen.truth, kind)
    return by_example(
        [
            compare(m.signal, from_another_head(m.noise) if null else m.noise, where)
            for m in seen.layers
            if m.noise is not None
        ]
    )


class Agreement(Experiment):
    """Agreement of the maps on I against R, beside a null."""

    number = 1
    title = "Agreement"
    question = "Do the two maps carry the same noise: do they agree on what is irrelevant?"
    quick = (V1, V2)
    arms = (V1, V2)
    predictions = (
        Prediction(
            "cancelling",
            "V1: correlation on I, above another head's",
            "above",
            0.1,
            "noise can only cancel if the second map of the same head has it too",
        ),
        Prediction(
            "cancelling",
            "V1: correlation on I minus on R",
            "above",
            0.1,
            "what is shared must be the noise, not the signal",
        ),
        Prediction(
            "sparsity",
            "V1: correlation on I, above another head's",
            "equal",
            0.1,
            "a sparse signed map needs no common noise; any second map would do",
        ),
    )

    def measure(self, shelf: Shelf) -> Measured:
        def above_null(trained: Trained) -> NDArray[np.float64]:
            seen = look(trained)
            return on(seen, "irrelevant", correlation) - on(seen, "irrelevant", correlation, True)

        def noise_over_signal(trained: Trained) -> NDArray[np.float64]:
            seen = look(trained)
            return on(seen, "irrelevant", correlation) - on(seen, "relevant", correlation)

        effects = {
            "V1: correlation on I, above another head's": shelf.values(V1, above_null),
            "V1: correlation on I minus on R": shelf.values(V1, noise_over_signal),
        }
        measures: dict[str, Compare] = {
            "correlation of logs": correlation,
            "disagreement": disagreement,
            "Jensen-Shannon, bits": divergence,
        }
        rows = [
            interval_row(
                f"{arm.name}: {name}",
                *(
                    shelf.values(arm, lambda t, c=compare, k=kind, n=null: on(look(t), k, c, n))  # type: ignore[misc]
                    for kind, null in (
                        ("irrelevant", False),
                        ("irrelevant", True),
                        ("relevant", False),
                    )
                ),
            )
            for arm in self.arms
            for name, compare in measures.items()
        ]
        table = Table("How alike the maps are", ["", "on I", "on I, null", "on R"], rows)
        series = {
            f"{arm.name} on {'I' if kind == 'irrelevant' else 'R'}": [
                (
                    step,
                    bootstrap(
                        shelf.values(arm, lambda t, s=step, k=kind: on(look(t, s), k, correlation))  # type: ignore[misc]
                    ),
                )
                for step in shelf.milestones(arm)
            ]
            for arm in self.arms
            for kind in ("irrelevant", "relevant")
        }
        picture = Picture("Correlation of the maps over training", "step", "correlation", series)
        return Measured(effects, [table], [picture])
