"""One model under the lens: every metric by layer and head, on a task or on a text."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from antiphase.lab.capture import Captured, LayerMaps, capture
from antiphase.lab.metrics import cancellation, rank, redundancy, sparsity
from antiphase.lab.metrics.allocation import allocation, signal_gain
from antiphase.lab.metrics.sinks import outliers, sink_mass
from antiphase.lab.truth import Truth

RANK_ROWS = 128  # rows of the lower left block whose rank is taken, if it has more

Measure = Callable[[LayerMaps, Truth], Tensor]

# [B, h] or [B, h, n] each; what needs a second map or a place to look for is left out without it.
ALWAYS: dict[str, Measure] = {
    "sink": lambda m, t: sink_mass(m.difference, t),
    "entropy": lambda m, t: sparsity.entropy(m.difference, t.visible),
    "Gini": lambda m, t: sparsity.gini(m.difference, t.visible),
    "Hoyer": lambda m, t: sparsity.hoyer(m.difference, t.visible),
    "above 1/T": lambda m, t: sparsity.share_above(m.difference, t.visible),
    "negative": lambda m, t: sparsity.negative_mass(m.difference, t.visible),
    "largest": lambda m, t: sparsity.max_weight(m.difference, t.visible),
    "outside [0, 1]": lambda m, t: sparsity.outside(m.difference, t.visible),
}
WITH_ANSWERS: dict[str, Measure] = {
    "answer": lambda m, t: allocation(m.difference, t)["relevant"],
    "noise": lambda m, t: allocation(m.difference, t)["irrelevant"],
}
WITH_PAIRS: dict[str, Measure] = {
    "lam": lambda m, t: _given(m.lam),
    "lam*": lambda m, t: cancellation.optimal_weight(m.signal, _given(m.noise), t),
    "agree on I": lambda m, t: cancellation.correlation(m.signal, _given(m.noise), t.irrelevant),
    "null": lambda m, t: cancellation.correlation(
        m.signal, cancellation.from_another_head(_given(m.noise)), t.irrelevant
    ),
}
WITH_BOTH: dict[str, Measure] = {
    "agree on R": lambda m, t: cancellation.correlation(m.signal, _given(m.noise), t.relevant),
    "rejection, dB": lambda m, t: cancellation.rejection(m.signal, m.difference, t),
    "signal gain": lambda m, t: signal_gain(m.difference, m.signal, t),
}


@dataclass
class Analysis:
    """What was found: numbers by layer and head, numbers by layer, and maps to draw."""

    model: str
    heads: list[dict[str, float]]  # one a head: layer, head, then metrics
    layers: list[dict[str, float]]  # one a layer: ranks, redundancy, outliers
    singular: list[dict[str, list[float]]]  # by layer, of each map
    depth: list[tuple[float, float]] = field(default_factory=list)  # of the answer, and its share
    maps: list[dict[str, Any]] = field(default_factory=list)  # of one text, by layer, for drawing

    def as_json(self) -> dict[str, Any]:
        """Return the numbers, without the maps."""
        return {
            "model": self.model,
            "heads": self.heads,
            "layers": self.layers,
            "singular_values": self.singular,
            "answer_by_depth": self.depth,
        }


def analyze(model: Any, ids: Tensor, truth: Truth) -> Analysis:
    """Return every metric that the model's maps on these texts allow."""
    seen = capture(model, ids, truth.rows, hidden=True, scores=True, outputs=True)
    whole = capture(model, ids[:4], _block_rows(ids[:4]))
    name = getattr(model.config, "attention", type(model).__name__)
    found = Analysis(str(name), _by_head(seen, truth), _by_layer(seen, whole), [], [], [])
    for m in whole.layers:
        block = {n: _block(A) for n, A in _named(m).items()}
        values = {n: rank.singular_values(A).mean((0, 1)).tolist() for n, A in block.items()}
        found.singular.append(values)
    if bool(truth.relevant.any()):
        found.depth = _by_depth(seen, truth)
    first = (
        capture(model, ids[:1], torch.arange(ids.shape[1])[None]) if ids.shape[1] <= 256 else None
    )
    if first is not None:
        found.maps = [{n: A[0].numpy() for n, A in _named(m).items()} for m in first.layers]
    return found


def text_truth(ids: Tensor, rows: int) -> Truth:
    """Return the last rows of a text, where nothing is known to be the answer."""
    B, T = ids.shape
    places = torch.arange(max(T - rows, 1), T).expand(B, -1)
    here = torch.arange(T)
    sink = (here == 0) & (here <= places[..., None])
    seen = here <= places[..., None]
    nothing = torch.zeros_like(seen)
    return Truth(places, nothing, sink, seen & ~sink, torch.zeros(places.shape))


def _by_head(seen: Captured, truth: Truth) -> list[dict[str, float]]:
    rows = []
    answers = bool(truth.relevant.any())
    for layer, m in enumerate(seen.layers):
        measures = dict(WITH_ANSWERS) if answers else {}
        measures |= ALWAYS
        if m.noise is not None:
            measures |= WITH_PAIRS | (WITH_BOTH if answers else {})
        values = {name: measure(m, truth) for name, measure in measures.items()}
        for head in range(m.signal.shape[1]):
            row: dict[str, float] = {"layer": layer, "head": head}
            row |= {name: float(v[:, head].double().mean()) for name, v in values.items()}
            rows.append(row)
    return rows


def _by_layer(seen: Captured, whole: Captured) -> list[dict[str, float]]:
    rows = []
    for layer, (m, block) in enumerate(zip(seen.layers, whole.layers, strict=True)):
        row: dict[str, float] = {"layer": layer}
        for name, A in _named(block).items():
            row[f"rank of {name}"] = float(rank.effective_rank(_block(A)).mean())
        if block.noise is not None:
            noise = _block(block.noise)
            row["participation of noise"] = float(rank.participation_ratio(noise).mean())
            row["90% energy of noise"] = float(rank.energy_rank(noise).mean())
        row["distance of heads"] = float(redundancy.cosine_distance(m.difference).mean())
        if m.outputs is not None:
            row["CKA of heads"] = redundancy.cka(m.outputs)
        logits = [outliers(s) for s in m.scores]
        if logits:
            row["logits top-1"] = max(o["top-1"] for o in logits)
            row["logits median"] = sum(o["median"] for o in logits) / len(logits)
        if seen.hidden:
            states = outliers(seen.hidden[layer + 1])
            row |= {"states top-1": states["top-1"], "states median": states["median"]}
        rows.append(row)
    return rows


def _by_depth(seen: Captured, truth: Truth, bins: int = 5) -> list[tuple[float, float]]:
    """Return the answer's share by where it stands, over all heads and layers."""
    share = torch.stack(
        [allocation(m.difference, truth)["relevant"].mean(1) for m in seen.layers]
    ).mean(0)
    found = []
    for i in range(bins):
        here = (truth.depth >= i / bins) & (truth.depth < (i + 1) / bins)
        if bool(here.any()):
            found.append(((i + 0.5) / bins, float(share[here].mean())))
    return found


def _named(m: LayerMaps) -> dict[str, Tensor]:
    if m.noise is None:
        return {"map": m.difference}
    return {"signal": m.signal, "noise": m.noise, "difference": m.difference}


def _block_rows(ids: Tensor) -> Tensor:
    """Return rows >= T/2, at most RANK_ROWS of them, evenly."""
    T = ids.shape[1]
    places = torch.linspace(T // 2, T - 1, min(RANK_ROWS, T - T // 2)).round().long()
    return places.expand(len(ids), -1)


def _block(A: Tensor) -> Tensor:
    """Return the columns < T/2 of such rows."""
    return A[..., : A.shape[-1] // 2].double()


def _given(t: Tensor | None) -> Tensor:
    assert t is not None
    return t
