"""What a view shows, as pure functions: model, tokens and edits to maps, predictions and metrics.

Edited maps are recomputed by the model: an edit in one layer changes the queries and keys of the
next. Nothing is drawn that the model did not compute.
"""

import base64
import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from antiphase.analysis.capture import LayerMaps, capture
from antiphase.analysis.head_metrics import head_metrics, head_ranks, spectra
from antiphase.analysis.metrics.allocation import allocation
from antiphase.explorer.edits import Edits, applied
from antiphase.explorer.models import ExploredModel
from antiphase.explorer.sequences import TokenSequence

TOP = 8  # most probable next tokens that are listed
THUMBNAIL = 28  # cells of a thumbnail's side
THUMBNAIL_LIMIT = 0.5  # weights beyond this have the strongest colour
METRICS = (
    "lam",
    "mass on R",
    "mass on S",
    "mass on I",
    "mass on own",
    "CMRR, dB",
    "corr on I",
    "entropy",
    "negative mass",
    "max weight",
    "effective rank, A1",
    "effective rank, lam A2",
    "effective rank, A",
)


class SupersededError(RuntimeError):
    """A newer request has made this computation useless."""


@dataclass(frozen=True)
class Computation:
    """The maps and predictions of one model on one sequence.

    Attributes:
        layers: complete maps [1, h, T, T] per layer: A1, E(A2), f lam and the map applied to V.
        logits: [T, vocabulary size].
    """

    layers: list[LayerMaps]
    logits: Tensor

    @property
    def bytes(self) -> int:
        """Return the memory that it takes."""
        maps = [t for m in self.layers for t in (m.signal, m.noise, m.difference) if t is not None]
        # where there is one map per head, signal and difference are the same tensor
        distinct = {t.data_ptr(): t.numel() * t.element_size() for t in maps}
        return sum(distinct.values()) + self.logits.numel() * self.logits.element_size()


@torch.no_grad()
def compute(
    explored: ExploredModel,
    sequence: TokenSequence,
    edits: Edits,
    superseded: Callable[[], bool] = lambda: False,
) -> Computation:
    """Run a model on a sequence, with its noise maps edited.

    Args:
        explored: the model.
        sequence: in its tokens.
        edits: of its noise maps.
        superseded: asked before every layer; if True, the computation stops.

    Raises:
        ValueError: the model does not have what the edits name.
        SupersededError: it was stopped.
    """
    edits.check(explored.noise_heads, sequence.length)
    edited = applied(edits, explored.model, explored.noise_heads)
    with _stopping(explored.model, superseded), edited:
        captured = capture(explored.model, sequence.ids, "all")
    kept = [_shown(explored, m, edits, i) for i, m in enumerate(captured.layers)]
    return Computation(kept, captured.logits[0])


def _shown(explored: ExploredModel, m: LayerMaps, edits: Edits, layer: int) -> LayerMaps:
    """Return the maps of the first sequence as they were applied: captured before the edit."""
    if m.noise is None or m.lam is None:
        same = m.signal is m.difference
        signal = m.signal[:1]
        return LayerMaps(signal, signal if same else m.difference[:1])
    f, signal, lam = edits.factor(layer), m.signal[:1], m.lam[:1]
    noise = edits.noise(m.noise, layer)[:1]
    maps = {"signal": signal, "noise": f * noise, "lam": lam}  # f is one of the noise term alone
    if m.integral is not None:
        maps["integral"] = m.integral[:1]
    attention = explored.model.model.attention_layers[layer]
    return LayerMaps(signal, attention.applied_map(maps), noise, f * lam)


@contextlib.contextmanager
def _stopping(model: nn.Module, superseded: Callable[[], bool]) -> Iterator[None]:
    """Stop the forward pass at the next layer once its result is no longer wanted."""

    def check(module: nn.Module, args: Any) -> None:
        if superseded():
            raise SupersededError("a newer request has replaced this one")

    blocks = next((m for m in model.modules() if isinstance(m, nn.ModuleList)), nn.ModuleList())
    hooks = [block.register_forward_pre_hook(check) for block in blocks]
    try:
        check(model, None)
        yield
    finally:
        for hook in hooks:
            hook.remove()


def default_head(computation: Computation, sequence: TokenSequence) -> tuple[int, int]:
    """Return layer and head with the most weight on the answer; without one, of the last layer."""
    if not sequence.answers:
        return len(computation.layers) - 1, 0
    masses = [
        allocation(_at_rows(m, sequence).difference, sequence.truth)["relevant"].mean((0, 2))
        for m in computation.layers
    ]
    layer = max(range(len(masses)), key=lambda i: float(masses[i].max()))
    return layer, int(masses[layer].argmax())


def metrics_of(
    computation: Computation, sequence: TokenSequence, layer: int, head: int
) -> dict[str, float]:
    """Return the metrics of one head by name, at the rows with an answer, or the last ones of text.

    Ranks are those of the block of rows >= T/2 and columns < T/2.
    """
    m = _one_head(computation.layers[layer], head)
    found = head_metrics(_at_rows(m, sequence), sequence.truth, answers=sequence.answers)
    half = sequence.length // 2
    found |= head_ranks(spectra(_rows(m, slice(half, None))))
    values = {n: float(found[n].nanmean()) for n in METRICS if n in found}
    return {n: value for n, value in values.items() if math.isfinite(value)}


def _one_head(m: LayerMaps, head: int) -> LayerMaps:
    at = slice(head, head + 1)
    lam = m.lam if m.lam is None or m.lam.shape[1] == 1 else m.lam[:, at]
    noise = None if m.noise is None else m.noise[:, at]
    return LayerMaps(m.signal[:, at], m.difference[:, at], noise, lam)


def _at_rows(m: LayerMaps, sequence: TokenSequence) -> LayerMaps:
    return _rows(m, sequence.truth.rows[0])


def _rows(m: LayerMaps, rows: Any) -> LayerMaps:
    lam = m.lam if m.lam is None or m.lam.shape[2] == 1 else m.lam[:, :, rows]
    noise = None if m.noise is None else m.noise[:, :, rows]
    return LayerMaps(m.signal[:, :, rows], m.difference[:, :, rows], noise, lam)


def predictions(
    computation: Computation,
    before: Computation,
    sequence: TokenSequence,
    name: Callable[[int], str],
) -> dict[str, Any]:
    """Return what the model predicts after every row, with and without the edits.

    Args:
        computation: with the edits.
        before: without.
        sequence: whose next tokens count as the answers; after the last row, the token that the
            model itself finds most probable without the edits.
        name: the string of a token id.

    Returns:
        `top`: per row, (token, probability, probability before) of the most probable tokens;
        `answer`: per row, token, logit, probability, rank, and logit and probability before.
    """
    p, p0 = computation.logits.softmax(-1), before.logits.softmax(-1)
    best = p.topk(min(TOP, p.shape[-1]), dim=-1)
    was = p0.gather(1, best.indices)
    top = [
        [[name(i), _short(a), _short(b)] for i, a, b in zip(*row, strict=True)]
        for row in zip(best.indices.tolist(), best.values.tolist(), was.tolist(), strict=True)
    ]
    answers = torch.cat([sequence.ids[0, 1:], before.logits[-1].argmax()[None]])[:, None]  # [T, 1]
    logit, logit0, pa, p0a = (
        t.gather(1, answers)[:, 0] for t in (computation.logits, before.logits, p, p0)
    )
    rank = (computation.logits > logit[:, None]).sum(-1) + 1
    fields = {
        "token": [name(i) for i in answers[:, 0].tolist()],
        "logit": logit.tolist(),
        "probability": pa.tolist(),
        "rank": rank.tolist(),
        "logit before": logit0.tolist(),
        "probability before": p0a.tolist(),
    }
    return {"top": top, "answer": fields}


def _short(probability: float) -> float:
    return round(probability, 6)


def packed_map(A: Tensor) -> dict[str, Any]:
    """Return a causal map [T, T] for a browser: the lower triangle as 16-bit integers, base64.

    A weight is `scale` times its integer; the error is below scale / 2, 2e-5 of the largest weight.
    """
    T = A.shape[-1]
    i, j = torch.tril_indices(T, T)
    values = A[i, j].double()
    scale = float(values.abs().max()) / 32767 or 1.0
    integers = (values / scale).round().to(torch.int16)
    return {"T": T, "scale": scale, "data": _base64(integers)}


def thumbnails(m: LayerMaps) -> dict[str, Any]:
    """Return small pictures of the applied maps of a layer: [h, n, n] as 8-bit integers, base64.

    Each cell has the weight of largest magnitude that it covers.
    """
    A = m.difference[0]  # [h, T, T]
    n = min(THUMBNAIL, A.shape[-1])
    high, low = F.adaptive_max_pool2d(A, n), -F.adaptive_max_pool2d(-A, n)
    largest = torch.where(high.abs() >= low.abs(), high, low)
    scaled = (largest / THUMBNAIL_LIMIT).clamp(-1, 1) * 127
    return {"heads": A.shape[0], "n": n, "data": _base64(scaled.round().to(torch.int8))}


def _base64(values: Tensor) -> str:
    return base64.b64encode(values.contiguous().numpy().tobytes()).decode()


def head_payload(
    computation: Computation, sequence: TokenSequence, layer: int, head: int
) -> dict[str, Any]:
    """Return the maps and metrics of one head for a browser.

    Returns:
        `signal` and, with a noise map, `noise` and `lam` (per row, or one number for all);
        `difference` only where it is not A1 - lam A2 itself.
    """
    m = _one_head(computation.layers[layer], head)
    found: dict[str, Any] = {
        "layer": layer,
        "head": head,
        "metrics": metrics_of(computation, sequence, layer, head),
        "signal": packed_map(m.signal[0, 0]),
    }
    plain = m.signal
    if m.noise is not None and m.lam is not None:
        lam = m.lam[0, 0, :, 0].tolist()
        found |= {"noise": packed_map(m.noise[0, 0]), "lam": [float(f"{x:.6g}") for x in lam]}
        plain = m.signal - m.lam * m.noise
    if not torch.allclose(plain, m.difference, atol=1e-6):
        found["difference"] = packed_map(m.difference[0, 0])
    return found
