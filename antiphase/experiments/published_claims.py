"""Published numbers, and what the lab's nano models measure beside them."""

from functools import partial

import numpy as np
from numpy.typing import NDArray

from antiphase.analysis.metrics.allocation import allocation
from antiphase.analysis.metrics.sinks import outliers
from antiphase.analysis.statistics import Interval, seed_interval
from antiphase.experiments.arms import STANDARD, V1, Arm
from antiphase.experiments.e05_sparsity import sparsity_metric
from antiphase.experiments.e13_cheap_noise import map_rank
from antiphase.experiments.model_measurements import (
    by_example,
    in_retrieval_heads,
    maps_on_task,
    mass,
)
from antiphase.experiments.results import Claim
from antiphase.experiments.trained_models import Measure, TrainedModel, TrainedModels

YE = "Ye et al. 2024, Differential Transformer, arXiv 2410.05258"
KONG = "papernotes.org's summary of Kong, Jang and Kwak 2025, arXiv 2505.16333"
LAM = "the first author of arXiv 2410.05258, 2025, github.com/microsoft/unilm, issue 1699"
SOURCES = {
    "attention to the answer (mass on R)": YE,
    "attention to the noise (mass on I)": YE,
    "weight of key tokens, gain by subtraction": KONG,
    "effective rank of the noise map": KONG,
    "the same by the participation ratio": "",
    "entropy of the maps, 1 is uniform": f"{KONG}; other summaries of it say higher",
    "largest attention logit, answer rows": YE,
    "largest hidden state, before the last block": YE,
    "lam of the first layer": LAM,
    "lam of the last layer": LAM,
}
"""Where a published number is from; not stored, so that a correction needs no new measurement."""


def mass_gain(model: TrainedModel) -> NDArray[np.float64]:
    """Return the relative gain of the mass on R by the subtraction, in retrieval heads.

    A ratio of means over sequences and heads: single rows may have hardly any mass to begin with.
    """
    after = in_retrieval_heads(
        model, lambda layer, truth: allocation(layer.difference, truth)["relevant"]
    )
    before = in_retrieval_heads(
        model, lambda layer, truth: allocation(layer.signal, truth)["relevant"]
    )
    return np.array([after.mean() / before.mean() - 1])


def outlier(model: TrainedModel, of: str) -> NDArray[np.float64]:
    """Return the largest magnitude of attention `logits` or `hidden` states."""
    captured = maps_on_task(model).captured
    if of == "hidden":
        blocks = captured.hidden[1:-1]  # the last one is the output of the final norm
        return np.array([max(outliers(h)["top-1"] for h in blocks)])
    return np.array([max(outliers(s)["top-1"] for m in captured.layers for s in m.scores)])


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
            partial(mass, kind="relevant"),
            both,
        ),
        beside(
            "attention to the noise (mass on I)",
            "3B, 4K: 0.49 to 0.54, V1 0.01 to 0.02",
            partial(mass, kind="irrelevant"),
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
            "largest attention logit, answer rows",
            "3B: 318.0, V1 38.8",
            partial(outlier, of="logits"),
            both,
        ),
        beside(
            "largest hidden state, before the last block",
            "3B: 3608.6, V1 1688.2",
            partial(outlier, of="hidden"),
            both,
        ),
        beside("lam of the first layer", "mostly 0.2 to 0.4 early", partial(lam, layer=0), only_v1),
        beside("lam of the last layer", "mostly about 0.8", partial(lam, layer=last), only_v1),
    ]
