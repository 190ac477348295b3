"""Published numbers, and what the lab's nano models measure beside them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from antiphase.analysis.metrics.allocation import allocation, signal_gain
from antiphase.analysis.statistics import bootstrap
from antiphase.experiments.arms import Arm, Trained
from antiphase.experiments.e05_sparsity import mean_of
from antiphase.experiments.e11_sinks import outlier
from antiphase.experiments.e13_cheap_noise import ranks
from antiphase.experiments.experiment import STANDARD, V1, Shelf
from antiphase.experiments.model_measurements import by_example, look


@dataclass(frozen=True)
class Claim:
    """A published number, and ours: of other models, on another task, at another size."""

    what: str
    published: str
    standard: str
    v1: str


def share(trained: Trained, kind: str) -> NDArray[np.float64]:
    """Return the share of the maps on R, S or I, by text."""
    seen = look(trained)
    return by_example([allocation(m.difference, seen.truth)[kind] for m in seen.layers])


def gains(trained: Trained) -> NDArray[np.float64]:
    """Return the gain of the answer's share over that of the first map alone, by text."""
    seen = look(trained)
    return by_example([signal_gain(m.difference, m.signal, seen.truth) for m in seen.layers])


def lam(trained: Trained, layer: int) -> NDArray[np.float64]:
    """Return lam of a layer, by text."""
    found = look(trained).layers[layer].lam
    assert found is not None
    return by_example([found])


def claims(shelf: Shelf) -> list[Claim]:
    """Return the table, with what the trained models on the shelf can tell."""
    if STANDARD not in shelf or V1 not in shelf:
        return []

    def both(what: str, published: str, measure: object, arms: tuple[Arm, ...]) -> Claim:
        cells = {
            arm.name: str(bootstrap(shelf.values(arm, measure)))  # type: ignore[arg-type]
            for arm in arms
        }
        return Claim(what, published, cells.get("standard", ""), cells.get("V1", ""))

    pair, only = (STANDARD, V1), (V1,)
    last = len(look(shelf[V1][0]).layers) - 1
    return [
        both(
            "attention to the answer",
            "3B, 4K: 0.03 to 0.09, V1 0.27 to 0.40",
            lambda t: share(t, "relevant"),
            pair,
        ),
        both(
            "attention to the noise",
            "3B, 4K: 0.49 to 0.54, V1 0.01 to 0.02",
            lambda t: share(t, "irrelevant"),
            pair,
        ),
        both("weight of key tokens, gain by subtraction", "analysis: +30% to +50%", gains, only),
        both(
            "effective rank of the noise",
            "analysis: 2 to 5 in all layers and sizes",
            lambda t: ranks(t, "noise"),
            only,
        ),
        both(
            "the same by the participation ratio",
            "",
            lambda t: ranks(t, "noise", "participation ratio"),
            only,
        ),
        both(
            "entropy of the maps, 1 is uniform",
            "analysis: lower for V1; others: higher",
            lambda t: mean_of("entropy", t),
            pair,
        ),
        both(
            "largest attention logit",
            "3B: 318.0, V1 38.8",
            lambda t: outlier(t, "logits", "top-1"),
            pair,
        ),
        both(
            "largest hidden state",
            "3B: 3608.6, V1 1688.2",
            lambda t: outlier(t, "hidden", "top-1"),
            pair,
        ),
        both("lam of the first layer", "mostly 0.2 to 0.4 early", lambda t: lam(t, 0), only),
        both("lam of the last layer", "mostly about 0.8", lambda t: lam(t, last), only),
    ]
