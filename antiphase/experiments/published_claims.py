"""Published numbers, and what the lab's nano models measure beside them."""

from functools import partial

import numpy as np
from numpy.typing import NDArray

from antiphase.analysis.metrics.allocation import allocation, signal_gain
from antiphase.analysis.statistics import Interval, seed_interval
from antiphase.experiments.arms import STANDARD, V1, Arm
from antiphase.experiments.e05_sparsity import sparsity_metric
from antiphase.experiments.e11_sinks import outlier
from antiphase.experiments.e13_cheap_noise import map_rank
from antiphase.experiments.model_measurements import by_example, maps_on_task
from antiphase.experiments.results import Claim
from antiphase.experiments.trained_models import Measure, TrainedModel, TrainedModels


def mass_fraction(model: TrainedModel, kind: str) -> NDArray[np.float64]:
    """Return the fraction of |A| on `relevant`, `sink` or `irrelevant` positions, by example."""
    maps = maps_on_task(model)
    return by_example([allocation(m.difference, maps.truth)[kind] for m in maps.layers])


def mass_gain(model: TrainedModel) -> NDArray[np.float64]:
    """Return the relative gain of the mass on R by the subtraction, by example."""
    maps = maps_on_task(model)
    return by_example([signal_gain(m.difference, m.signal, maps.truth) for m in maps.layers])


def lam(model: TrainedModel, layer: int) -> NDArray[np.float64]:
    """Return lam of a layer, by example."""
    found = maps_on_task(model).layers[layer].lam
    assert found is not None
    return by_example([found])


def published_claims(models: TrainedModels) -> list[Claim]:
    """Return the table of published numbers beside those of STANDARD and V1."""

    def beside(what: str, published: str, measure: Measure, arms: tuple[Arm, ...]) -> Claim:
        cells: dict[str, Interval] = {
            arm.name: seed_interval(models.values(arm, measure)) for arm in arms
        }
        return Claim(what, published, cells.get("standard", ""), cells.get("V1", ""))

    both, only_v1 = (STANDARD, V1), (V1,)
    last = len(maps_on_task(models[V1][0]).layers) - 1
    return [
        beside(
            "attention to the answer (mass on R)",
            "3B, 4K: 0.03 to 0.09, V1 0.27 to 0.40",
            partial(mass_fraction, kind="relevant"),
            both,
        ),
        beside(
            "attention to the noise (mass on I)",
            "3B, 4K: 0.49 to 0.54, V1 0.01 to 0.02",
            partial(mass_fraction, kind="irrelevant"),
            both,
        ),
        beside(
            "weight of key tokens, gain by subtraction",
            "analysis: +30% to +50%",
            mass_gain,
            only_v1,
        ),
        beside(
            "effective rank of the noise map",
            "analysis: 2 to 5 in all layers and sizes",
            partial(map_rank, which="noise"),
            only_v1,
        ),
        beside(
            "the same by the participation ratio",
            "",
            partial(map_rank, which="noise", metric="participation ratio"),
            only_v1,
        ),
        beside(
            "entropy of the maps, 1 is uniform",
            "analysis: lower for V1; others: higher",
            partial(sparsity_metric, name="entropy"),
            both,
        ),
        beside(
            "largest attention logit",
            "3B: 318.0, V1 38.8",
            partial(outlier, of="logits", which="top-1"),
            both,
        ),
        beside(
            "largest hidden state",
            "3B: 3608.6, V1 1688.2",
            partial(outlier, of="hidden", which="top-1"),
            both,
        ),
        beside("lam of the first layer", "mostly 0.2 to 0.4 early", partial(lam, layer=0), only_v1),
        beside("lam of the last layer", "mostly about 0.8", partial(lam, layer=last), only_v1),
    ]
