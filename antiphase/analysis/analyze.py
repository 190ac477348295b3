"""All metrics of one model, per layer and head, on a synthetic task or on natural-language text."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from antiphase.analysis.capture import CapturedMaps, LayerMaps, capture
from antiphase.analysis.ground_truth import GroundTruth
from antiphase.analysis.metrics import cancellation, rank, redundancy, sparsity
from antiphase.analysis.metrics.allocation import allocation, signal_gain
from antiphase.analysis.metrics.dynamics import residual_cosine
from antiphase.analysis.metrics.flow import attention_times_gradient, logit_change
from antiphase.analysis.metrics.sinks import outliers, sink_mass
from antiphase.models import AntiphaseForCausalLM

RANK_ROWS = 128  # at most this many rows of the lower left block, whose rank is taken
RANK_SEQUENCES = 4
FLOW_SEQUENCES = 16
DRAWN_TOKENS = 256  # of the first sequence, whose maps are drawn
MAP_ELEMENTS = 2**25  # weights of captured maps, over all layers and heads, held at once

Metric = Callable[[LayerMaps, GroundTruth], Tensor]

# Each gives [B, h] or [B, h, n]. Metrics that need a second map or known answers come separately.
ALWAYS: dict[str, Metric] = {
    "mass on S": lambda m, t: sink_mass(m.difference, t),
    "entropy": lambda m, t: sparsity.entropy(m.difference, t.visible),
    "Gini": lambda m, t: sparsity.gini(m.difference, t.visible),
    "Hoyer": lambda m, t: sparsity.hoyer(m.difference, t.visible),
    "fraction > 1/T": lambda m, t: sparsity.fraction_above_uniform(m.difference, t.visible),
    "negative mass": lambda m, t: sparsity.negative_mass(m.difference, t.visible),
    "max weight": lambda m, t: sparsity.max_weight(m.difference, t.visible),
    "outside [0, 1]": lambda m, t: sparsity.fraction_outside_simplex(m.difference, t.visible),
}
WITH_ANSWERS: dict[str, Metric] = {
    "mass on R": lambda m, t: allocation(m.difference, t)["relevant"],
    "mass on I": lambda m, t: allocation(m.difference, t)["irrelevant"],
}
WITH_NOISE_MAP: dict[str, Metric] = {
    "lam": lambda m, t: _present(m.lam),
    "optimal lam": lambda m, t: cancellation.optimal_weight(m.signal, _present(m.noise), t),
    "corr(A1,A2) on I": lambda m, t: cancellation.correlation(
        m.signal, _present(m.noise), t.irrelevant
    ),
    "corr on I, null": lambda m, t: cancellation.correlation(
        m.signal, cancellation.from_another_head(_present(m.noise)), t.irrelevant
    ),
}
WITH_BOTH: dict[str, Metric] = {
    "corr(A1,A2) on R": lambda m, t: cancellation.correlation(
        m.signal, _present(m.noise), t.relevant
    ),
    "CMRR, dB": lambda m, t: cancellation.rejection(m.signal, m.difference, t),
    "signal gain": lambda m, t: signal_gain(m.difference, m.signal, t),
}
MAXIMA = ("attention logit max", "hidden state max")  # of several batches the largest counts


@dataclass
class Analysis:
    """The metrics of one model.

    Attributes:
        model: name of the attention mechanism, or the class of a foreign model.
        heads: one row per head: `layer`, `head`, then metrics by name.
        layers: one row per layer: ranks, redundancy, outliers.
        singular_values: per layer, by name of the map, largest first.
        mass_by_depth: (depth of the answer, fraction of |A| on R), over all heads and layers.
        maps: the complete maps of the first sequence's start, per layer, by name: [h, T, T] each.
    """

    model: str
    heads: list[dict[str, float]]
    layers: list[dict[str, float]]
    singular_values: list[dict[str, list[float]]] = field(default_factory=list)
    mass_by_depth: list[tuple[float, float]] = field(default_factory=list)
    maps: list[dict[str, Any]] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return the metrics as plain JSON types, without the maps."""
        return {
            "model": self.model,
            "heads": self.heads,
            "layers": self.layers,
            "singular_values": self.singular_values,
            "mass_on_R_by_depth": self.mass_by_depth,
        }


def analyze(model: Any, ids: Tensor, truth: GroundTruth) -> Analysis:
    """Measure every metric that the model's maps on these sequences allow.

    Args:
        model: any model that `capture` takes.
        ids: token ids, [B, T].
        truth: the rows to capture, and what their keys are.

    Returns:
        Metrics as means over sequences and rows. Metrics of A2 are left out for models with one map
        per head, metrics of R where no answers are known.
    """
    name = getattr(model.config, "attention", type(model).__name__)
    heads, layers, on_answer = [], [], []
    batches = torch.arange(len(ids)).split(_sequences_at_once(model, truth))
    for batch in batches:
        part = truth.select(batch)
        captured = capture(model, ids[batch], part.rows, hidden=True, scores=True, outputs=True)
        heads.append(_by_head(captured, part))
        layers.append(_by_layer(captured))
        on_answer.append(_mass_on_answer(captured, part))
    ranks, singular = [], []
    for sequence in ids[:RANK_SEQUENCES].split(1):
        block = capture(model, sequence, _block_rows(sequence))
        ranks.append([_ranks(m) for m in block.layers])
        singular.append([_singular_values(m) for m in block.layers])
    sizes = [len(batch) for batch in batches]
    by_layer = zip(_merged(layers, sizes), _merged(ranks, [1] * len(ranks)), strict=True)
    found = Analysis(str(name), _merged(heads, sizes), [row | more for row, more in by_layer])
    for same_layer in zip(*singular, strict=True):
        found.singular_values.append(
            {n: np.mean([s[n] for s in same_layer], axis=0).tolist() for n in same_layer[0]}
        )
    if bool(truth.relevant.any()):
        found.mass_by_depth = _by_depth(torch.cat(on_answer), truth)
    if isinstance(model, AntiphaseForCausalLM) and ids.shape[1] <= DRAWN_TOKENS:
        first = torch.arange(len(ids))[:FLOW_SEQUENCES]
        _add_flow(found, model, ids[first], truth.select(first))
    complete = capture(model, ids[:1, :DRAWN_TOKENS], "all")
    found.maps = [{n: A[0].numpy() for n, A in named_maps(m).items()} for m in complete.layers]
    return found


def named_maps(m: LayerMaps) -> dict[str, Tensor]:
    """Return the maps of a layer under the names that tables and figures use."""
    if m.noise is None:
        return {"A": m.difference}
    return {"A1": m.signal, "A2": m.noise, "A1 - lam A2": m.difference}


def _add_flow(
    found: Analysis, model: AntiphaseForCausalLM, ids: Tensor, truth: GroundTruth
) -> None:
    """Add what needs complete maps: how the answer's logit depends on them, and on A2."""
    noise = "lam" in found.heads[0]
    answers = bool(truth.relevant.any())
    if answers:
        for row, fraction in zip(
            found.layers, attention_times_gradient(model, ids, truth), strict=True
        ):
            row["attention x gradient on R"] = float(fraction.mean())
    if noise:
        for row, cosine in zip(found.layers, residual_cosine(model, ids), strict=True):
            row["cos(noise term, residual)"] = float(cosine.mean())
    if noise and answers:
        for row in found.heads:
            layer, head = int(row["layer"]), int(row["head"])
            lost = logit_change(model, ids, truth, layer=layer, head=head)
            row["logit drop, no A2"] = float(lost.mean())


def _sequences_at_once(model: Any, truth: GroundTruth) -> int:
    """Return how many sequences' maps fit into MAP_ELEMENTS."""
    layers, heads = model.config.num_hidden_layers, model.config.num_attention_heads
    return max(1, MAP_ELEMENTS // (layers * heads * truth.relevant[0].numel()))


def _merged(parts: list[list[dict[str, float]]], sizes: list[int]) -> list[dict[str, float]]:
    """Return the rows' means over batches, weighted by their sizes; of maxima the largest."""
    merged = []
    for same in zip(*parts, strict=True):
        merged.append(
            {
                name: max(row[name] for row in same)
                if name in MAXIMA
                else float(np.average([row[name] for row in same], weights=sizes))
                for name in same[0]
            }
        )
    return merged


def _by_head(captured: CapturedMaps, truth: GroundTruth) -> list[dict[str, float]]:
    rows = []
    answers = bool(truth.relevant.any())
    for layer, m in enumerate(captured.layers):
        metrics = dict(WITH_ANSWERS) if answers else {}
        metrics |= ALWAYS
        if m.noise is not None:
            metrics |= WITH_NOISE_MAP | (WITH_BOTH if answers else {})
        values = {name: metric(m, truth) for name, metric in metrics.items()}
        for head in range(m.signal.shape[1]):
            row: dict[str, float] = {"layer": layer, "head": head}
            row |= {name: float(v[:, head].double().mean()) for name, v in values.items()}
            rows.append(row)
    return rows


def _by_layer(captured: CapturedMaps) -> list[dict[str, float]]:
    rows = []
    for layer, m in enumerate(captured.layers):
        row: dict[str, float] = {"layer": layer}
        row["head cosine distance"] = float(redundancy.cosine_distance(m.difference).mean())
        if m.outputs is not None:
            row["head output CKA"] = redundancy.cka(m.outputs)
        logits = [outliers(s) for s in m.scores]
        if logits:
            row["attention logit max"] = max(o["top-1"] for o in logits)
            row["attention logit median"] = sum(o["median"] for o in logits) / len(logits)
        if captured.hidden:
            states = outliers(captured.hidden[layer + 1])
            row |= {"hidden state max": states["top-1"], "hidden state median": states["median"]}
        rows.append(row)
    return rows


def _ranks(m: LayerMaps) -> dict[str, float]:
    found = {
        f"effective rank, {n}": float(rank.effective_rank(_block(A)).mean())
        for n, A in named_maps(m).items()
    }
    if m.noise is not None:
        noise = _block(m.noise)
        found["participation ratio, A2"] = float(rank.participation_ratio(noise).mean())
        found["rank at 90% energy, A2"] = float(rank.energy_rank(noise).mean())
    return found


def _singular_values(m: LayerMaps) -> dict[str, Any]:
    return {
        n: rank.singular_values(_block(A)).mean((0, 1)).numpy() for n, A in named_maps(m).items()
    }


def _mass_on_answer(captured: CapturedMaps, truth: GroundTruth) -> Tensor:
    """Return the fraction of |A| on R per sequence and row, over all heads and layers, [B, n]."""
    found = [allocation(m.difference, truth)["relevant"].mean(1) for m in captured.layers]
    return torch.stack(found).mean(0)


def _by_depth(mass: Tensor, truth: GroundTruth, bins: int = 5) -> list[tuple[float, float]]:
    """Return the mean mass [B, n] in each bin of the answer's depth that is not empty."""
    found = []
    for i in range(bins):
        inside = (truth.depth >= i / bins) & (truth.depth < (i + 1) / bins)
        if bool(inside.any()):
            found.append(((i + 0.5) / bins, float(mass[inside].mean())))
    return found


def _block_rows(ids: Tensor) -> Tensor:
    """Return rows >= T/2, at most RANK_ROWS of them, evenly spaced."""
    T = ids.shape[1]
    places = torch.linspace(T // 2, T - 1, min(RANK_ROWS, T - T // 2)).round().long()
    return places.expand(len(ids), -1)


def _block(A: Tensor) -> Tensor:
    """Return the columns < T/2 of such rows, in fp64."""
    return A[..., : A.shape[-1] // 2].double()


def _present(t: Tensor | None) -> Tensor:
    assert t is not None
    return t
