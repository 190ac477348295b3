"""All metrics of one model, per layer and head, on a synthetic task or on natural-language text."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from antiphase.analysis.branch_rms import branch_rms
from antiphase.analysis.capture import CapturedMaps, capture
from antiphase.analysis.ground_truth import GroundTruth
from antiphase.analysis.head_metrics import (
    Values,
    complete_ranks,
    head_metrics,
    head_ranks,
    named_maps,
    spectra,
)
from antiphase.analysis.metrics import redundancy
from antiphase.analysis.metrics.allocation import allocation
from antiphase.analysis.metrics.dynamics import residual_cosine
from antiphase.analysis.metrics.flow import attention_times_gradient, logit_change
from antiphase.analysis.metrics.sinks import outliers
from antiphase.analysis.retrieval_heads import RetrievalHeads, retrieval_heads
from antiphase.models import AntiphaseForCausalLM

RANK_ROWS = 128  # at most this many rows of the lower left block, whose rank is taken
RANK_SEQUENCES = 4
FLOW_SEQUENCES = 16
DRAWN_TOKENS = 256  # of the first sequence, whose maps are drawn
MAP_ELEMENTS = 2**25  # weights of captured maps, over all layers and heads, held at once
MAXIMA = ("attention logit max", "hidden state max")  # of several batches the largest counts
MEDIANS = (
    "optimal lam",
    "signal gain",
)  # ratios that grow without bound if A2 on I, A1 on R vanish
DEPTH_BINS = 5

Row = dict[str, float]


@dataclass
class DrawnSequence:
    """The sequence whose maps are drawn: the first of the batch, up to `DRAWN_TOKENS`.

    Attributes:
        tokens: token strings, [T].
        maps: the complete maps per layer, by name: [h, T, T] each.
        row: the last row that predicts an answer; None without one.
        relevant: positions of R of that row.
    """

    tokens: list[str]
    maps: list[dict[str, Any]]
    row: int | None = None
    relevant: list[int] = field(default_factory=list)


@dataclass
class Analysis:
    """The metrics of one model.

    Attributes:
        model: name of the attention mechanism, or the class of a foreign model.
        heads: one row per head: `layer`, `head`, then metrics by name.
        layers: one row per layer: redundancy, outliers, flow.
        branches: one row per layer: RMS of both branches and of their streams; only of our models.
        retrieval: the retrieval heads; None where no answers are known.
        retrieval_means: the metrics of `heads`, averaged over the retrieval heads of each layer
            (None in a layer without), and of the complete model as the last entry.
        singular_values: per layer, by name of the map, largest first.
        mass_by_depth: (depth of the answer, fraction of |A| on R), over `all heads` and over the
            `retrieval heads`.
        drawn: the first sequence with its complete maps.
    """

    model: str
    heads: list[Row]
    layers: list[Row]
    branches: list[Row] = field(default_factory=list)
    retrieval: RetrievalHeads | None = None
    retrieval_means: list[Row | None] = field(default_factory=list)
    singular_values: list[dict[str, list[float]]] = field(default_factory=list)
    mass_by_depth: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    drawn: DrawnSequence | None = None

    def is_retrieval_head(self, layer: float, head: float) -> bool:
        """Return whether a head retrieves; False where it is not known."""
        return self.retrieval is not None and bool(self.retrieval.layers[int(layer)][int(head)])

    def as_json(self) -> dict[str, Any]:
        """Return the metrics as plain JSON types, without the maps."""
        found: dict[str, Any] = {
            "model": self.model,
            "heads": self.heads,
            "layers": self.layers,
            "branches": self.branches,
            "singular_values": self.singular_values,
            "mass_on_R_by_depth": {
                name: [list(point) for point in points]
                for name, points in self.mass_by_depth.items()
            },
        }
        if self.retrieval is not None:
            *by_layer, total = self.retrieval_means
            found["retrieval_heads"] = {
                "layers": [mask.nonzero()[:, 0].tolist() for mask in self.retrieval.layers],
                "largest_mass_on_R": self.retrieval.largest,
                "uniform_mass_on_R": self.retrieval.uniform,
                "means_by_layer": by_layer,
                "means": total,
            }
        return found


def analyze(
    model: Any,
    ids: Tensor,
    truth: GroundTruth,
    *,
    validation: tuple[Tensor, GroundTruth] | None = None,
    tokens: list[str] | None = None,
) -> Analysis:
    """Measure every metric that the model's maps on these sequences allow.

    Args:
        model: any model that `capture` takes.
        ids: token ids, [B, T].
        truth: the rows to capture, and what their keys are.
        validation: other sequences with known answers, on which the retrieval heads are chosen.
        tokens: token strings of the first sequence, for figures; default: the ids.

    Returns:
        Metrics as means over sequences and rows (`MEDIANS`: medians over sequences). Metrics of A2
        are left out for models with one map per head, metrics of R where no answers are known.
    """
    answers = bool(truth.relevant.any())
    at_once = _sequences_at_once(model, truth)
    by_head: list[list[Values]] = []
    by_layer: list[list[Row]] = []
    on_answer = []
    batches = torch.arange(len(ids)).split(at_once)
    for batch in batches:
        part = truth.select(batch)
        captured = capture(model, ids[batch], part.rows, hidden=True, scores=True, outputs=True)
        by_head.append([head_metrics(m, part, answers=answers) for m in captured.layers])
        by_layer.append(_by_layer(captured))
        masses = [allocation(m.difference, part)["relevant"] for m in captured.layers]
        on_answer.append(torch.cat(masses, dim=1))  # [B, heads of all layers, n]
    values = [_concatenated(same) for same in zip(*by_head, strict=True)]
    layers = _merged(by_layer, [len(batch) for batch in batches])
    if isinstance(model, AntiphaseForCausalLM) and ids.shape[1] <= DRAWN_TOKENS:
        first = torch.arange(len(ids))[:FLOW_SEQUENCES]
        _add_flow(values, layers, model, ids[first], truth.select(first))
    singular = _add_ranks(values, model, ids[:RANK_SEQUENCES])
    complete = capture(model, ids[:1, :DRAWN_TOKENS], "all")
    for found, m in zip(values, complete.layers, strict=True):
        found |= complete_ranks(m)
    analysis = Analysis(
        str(getattr(model.config, "attention", type(model).__name__)),
        _head_rows(values),
        layers,
        singular_values=singular,
        drawn=_drawn(complete, ids, truth, tokens),
    )
    if isinstance(model, AntiphaseForCausalLM):
        analysis.branches = _branches(model, ids[:at_once])
    if answers:
        analysis.mass_by_depth["all heads"] = _by_depth(torch.cat(on_answer).mean(1), truth)
    if answers and validation is not None:
        first = torch.arange(len(validation[0]))[:at_once]
        where = validation[1].select(first)
        chosen = retrieval_heads(capture(model, validation[0][first], where.rows), where)
        analysis.retrieval = chosen
        analysis.retrieval_means = _retrieval_means(values, chosen)
        if chosen.largest > 0:
            mass = torch.cat(on_answer)[:, torch.cat(chosen.layers)].mean(1)
            analysis.mass_by_depth["retrieval heads"] = _by_depth(mass, truth)
    return analysis


def _add_ranks(values: list[Values], model: Any, ids: Tensor) -> list[dict[str, list[float]]]:
    """Add the ranks of each head; return the singular values of each layer, means over heads."""
    by_sequence = [
        [spectra(m) for m in capture(model, sequence, _block_rows(sequence)).layers]
        for sequence in ids.split(1)
    ]
    by_layer = [_concatenated(same) for same in zip(*by_sequence, strict=True)]
    for found, s in zip(values, by_layer, strict=True):
        found |= head_ranks(s)
    return [{name: s.mean((0, 1)).tolist() for name, s in layer.items()} for layer in by_layer]


def _add_flow(
    values: list[Values],
    layers: list[Row],
    model: AntiphaseForCausalLM,
    ids: Tensor,
    truth: GroundTruth,
) -> None:
    """Add what needs complete maps: how the answer's logit depends on them, and on A2."""
    noise = "lam" in values[0]
    answers = bool(truth.relevant.any())
    if answers:
        for row, fraction in zip(layers, attention_times_gradient(model, ids, truth), strict=True):
            row["attention x gradient on R"] = float(fraction.mean())
    if noise:
        for row, cosine in zip(layers, residual_cosine(model, ids), strict=True):
            row["cos(noise term, residual)"] = float(cosine.mean())
    if noise and answers:
        for layer, found in enumerate(values):
            lost = [
                logit_change(model, ids, truth, layer=layer, head=head).mean(1)
                for head in range(found["lam"].shape[1])
            ]
            found["logit drop, no A2"] = torch.stack(lost, dim=1)


def _sequences_at_once(model: Any, truth: GroundTruth) -> int:
    """Return how many sequences' maps fit into MAP_ELEMENTS, of those that there are."""
    layers, heads = model.config.num_hidden_layers, model.config.num_attention_heads
    fitting = MAP_ELEMENTS // (layers * heads * truth.relevant[0].numel())
    return min(max(1, fitting), len(truth.rows))


def _concatenated(parts: tuple[Values, ...]) -> Values:
    """Return the metrics of several batches as those of one."""
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _merged(parts: list[list[Row]], sizes: list[int]) -> list[Row]:
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


def _head_rows(values: list[Values]) -> list[Row]:
    """Return one row per head; metrics that no sequence defines are left out."""
    rows = []
    for layer, found in enumerate(values):
        means = {name: _over_sequences(name, v) for name, v in found.items()}
        for head in range(len(means["entropy"])):
            row: Row = {name: float(mean[head]) for name, mean in means.items()}
            row = {name: value for name, value in row.items() if not math.isnan(value)}
            rows.append({"layer": layer, "head": head} | row)
    return rows


def _over_sequences(name: str, values: Tensor) -> Tensor:
    """Return the mean of a metric [B, ...] over sequences, of some the median; NaN is left out."""
    return values.nanmedian(0).values if name in MEDIANS else values.nanmean(0)


def _retrieval_means(values: list[Values], chosen: RetrievalHeads) -> list[Row | None]:
    """Return the metrics over the retrieval heads of each layer, and of the complete model."""
    by_layer = [
        {name: chosen.layer_mean(v, layer) for name, v in found.items()}
        for layer, found in enumerate(values)
    ]
    total = {name: chosen.model_mean([found[name] for found in values]) for name in values[0]}
    rows = []
    for means in [*by_layer, total]:
        row = {n: float(_over_sequences(n, v)) for n, v in means.items() if v is not None}
        rows.append({n: v for n, v in row.items() if not math.isnan(v)} or None)
    return rows


def _by_layer(captured: CapturedMaps) -> list[Row]:
    rows = []
    for layer, m in enumerate(captured.layers):
        row: Row = {"layer": layer}
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


def _branches(model: AntiphaseForCausalLM, ids: Tensor) -> list[Row]:
    return [
        {
            "layer": layer,
            "attention / stream": rms.attention_ratio,
            "feed-forward / stream": rms.feed_forward_ratio,
            "attention": rms.attention,
            "stream before attention": rms.attention_stream,
            "feed-forward": rms.feed_forward,
            "stream before feed-forward": rms.feed_forward_stream,
        }
        for layer, rms in enumerate(branch_rms(model, ids))
    ]


def _by_depth(mass: Tensor, truth: GroundTruth) -> list[tuple[float, float]]:
    """Return the mean mass [B, n] in each bin of the answer's depth that is not empty."""
    found = []
    answered = truth.relevant.any(-1)
    for i in range(DEPTH_BINS):
        depth = truth.depth * DEPTH_BINS
        inside = answered & (depth >= i) & (depth < i + 1)
        if bool(inside.any()):
            found.append(((i + 0.5) / DEPTH_BINS, float(mass[inside].mean())))
    return found


def _drawn(
    complete: CapturedMaps, ids: Tensor, truth: GroundTruth, tokens: list[str] | None
) -> DrawnSequence:
    maps = [{n: A[0].numpy() for n, A in named_maps(m).items()} for m in complete.layers]
    names = tokens if tokens is not None else [str(i) for i in ids[0].tolist()]
    drawn = DrawnSequence(names[:DRAWN_TOKENS], maps)
    answered = truth.relevant[0].any(-1) & (truth.rows[0] < DRAWN_TOKENS)
    if bool(answered.any()):
        last = int(answered.nonzero()[-1])
        drawn.row = int(truth.rows[0, last])
        drawn.relevant = truth.relevant[0, last].nonzero()[:, 0].tolist()
    return drawn


def _block_rows(ids: Tensor) -> Tensor:
    """Return rows >= T/2, at most RANK_ROWS of them, evenly spaced."""
    T = ids.shape[1]
    places = torch.linspace(T // 2, T - 1, min(RANK_ROWS, T - T // 2)).round().long()
    return places.expand(len(ids), -1)
