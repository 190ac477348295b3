"""One model under the lens: every metric by layer and head, on a task or on a text."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from antiphase.analysis.capture import Captured, LayerMaps, capture
from antiphase.analysis.ground_truth import Truth
from antiphase.analysis.metrics import cancellation, rank, redundancy, sparsity
from antiphase.analysis.metrics.allocation import allocation, signal_gain
from antiphase.analysis.metrics.dynamics import residual_cosine
from antiphase.analysis.metrics.flow import attention_times_gradient, logit_change
from antiphase.analysis.metrics.sinks import outliers, sink_mass
from antiphase.models import AntiphaseForCausalLM

RANK_ROWS = 128  # rows of the lower left block whose rank is taken, if it has more
RANK_TEXTS = 4
FLOW_TEXTS = 16
DRAWN = 256  # tokens of the first text whose maps are drawn
HELD = 2**25  # numbers of a map, over all layers and heads, that are held at once

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
    singular: list[dict[str, list[float]]] = field(default_factory=list)  # by layer, of each map
    depth: list[tuple[float, float]] = field(default_factory=list)  # of the answer, and its share
    maps: list[dict[str, Any]] = field(default_factory=list)  # of a text's start, by layer

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
    """Return every metric that the model's maps on these texts allow, a few texts at a time."""
    name = getattr(model.config, "attention", type(model).__name__)
    heads, layers, shares = [], [], []
    pieces = torch.arange(len(ids)).split(_texts_at_once(model, truth))
    for piece in pieces:
        some = truth.of(piece)
        seen = capture(model, ids[piece], some.rows, hidden=True, scores=True, outputs=True)
        heads.append(_by_head(seen, some))
        layers.append(_by_layer(seen))
        shares.append(_answer_share(seen, some))
    ranks, singular = [], []
    for text in ids[:RANK_TEXTS].split(1):
        whole = capture(model, text, _block_rows(text))
        ranks.append([_ranks(m) for m in whole.layers])
        singular.append([_singular(m) for m in whole.layers])
    sizes = [len(piece) for piece in pieces]
    by_layer = zip(_merged(layers, sizes), _merged(ranks, [1] * len(ranks)), strict=True)
    found = Analysis(str(name), _merged(heads, sizes), [a | b for a, b in by_layer])
    for same_layer in zip(*singular, strict=True):
        found.singular.append(
            {n: np.mean([s[n] for s in same_layer], axis=0).tolist() for n in same_layer[0]}
        )
    if bool(truth.relevant.any()):
        found.depth = _by_depth(torch.cat(shares), truth)
    if isinstance(model, AntiphaseForCausalLM) and ids.shape[1] <= DRAWN:
        _add_flow(found, model, ids[:FLOW_TEXTS], truth.of(torch.arange(len(ids))[:FLOW_TEXTS]))
    begin = ids[:1, :DRAWN]
    first = capture(model, begin, torch.arange(begin.shape[1])[None])
    found.maps = [{n: A[0].numpy() for n, A in _named(m).items()} for m in first.layers]
    return found


def _add_flow(found: Analysis, model: AntiphaseForCausalLM, ids: Tensor, truth: Truth) -> None:
    """Add what follows from whole maps: how the answer depends on them, and on the noise."""
    pairs = "lam" in found.heads[0]
    answers = bool(truth.relevant.any())
    if answers:
        for row, share in zip(
            found.layers, attention_times_gradient(model, ids, truth), strict=True
        ):
            row["A x dA on answer"] = float(share.mean())
    if pairs:
        for row, cosine in zip(found.layers, residual_cosine(model, ids), strict=True):
            row["noise with stream"] = float(cosine.mean())
    if pairs and answers:
        for row in found.heads:
            layer, head = int(row["layer"]), int(row["head"])
            lost = logit_change(model, ids, truth, layer=layer, head=head)
            row["logit lost without noise"] = float(lost.mean())


def _texts_at_once(model: Any, truth: Truth) -> int:
    """Return how many texts' maps are held together."""
    layers, heads = model.config.num_hidden_layers, model.config.num_attention_heads
    return max(1, HELD // (layers * heads * truth.relevant[0].numel()))


def _merged(parts: list[list[dict[str, float]]], sizes: list[int]) -> list[dict[str, float]]:
    """Return the rows' means over parts, by their sizes; of largest values, the largest."""
    merged = []
    for same in zip(*parts, strict=True):
        merged.append(
            {
                name: max(row[name] for row in same)
                if name.endswith("top-1")
                else float(np.average([row[name] for row in same], weights=sizes))
                for name in same[0]
            }
        )
    return merged


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


def _by_layer(seen: Captured) -> list[dict[str, float]]:
    rows = []
    for layer, m in enumerate(seen.layers):
        row: dict[str, float] = {"layer": layer}
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


def _ranks(m: LayerMaps) -> dict[str, float]:
    found = {
        f"rank of {n}": float(rank.effective_rank(_block(A)).mean()) for n, A in _named(m).items()
    }
    if m.noise is not None:
        noise = _block(m.noise)
        found["participation of noise"] = float(rank.participation_ratio(noise).mean())
        found["90% energy of noise"] = float(rank.energy_rank(noise).mean())
    return found


def _singular(m: LayerMaps) -> dict[str, Any]:
    return {n: rank.singular_values(_block(A)).mean((0, 1)).numpy() for n, A in _named(m).items()}


def _answer_share(seen: Captured, truth: Truth) -> Tensor:
    """Return the share of the answer by text and row, over all heads and layers, [B, n]."""
    found = [allocation(m.difference, truth)["relevant"].mean(1) for m in seen.layers]
    return torch.stack(found).mean(0)


def _by_depth(share: Tensor, truth: Truth, bins: int = 5) -> list[tuple[float, float]]:
    """Return the answer's share by where it stands."""
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
