"""Attention in fp64 from the definitions, with the size of every term; for random calls.

Shares no code with `antiphase` but the hash of dropout, which `test_dropout.py` compares with
loops. `test_fuzz.py` compares this file with `loop.py`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from antiphase.ops.dropout import dropout_mask
from tests.ops.random_calls import Call


@dataclass(frozen=True)
class Expected:
    """What a call should give, all in fp64, by name: "out" and the gradients of its tensors.

    A magnitude is a value with every term of its sums taken positive. Rounding errors are relative
    to it: where terms cancel, no code can do better.
    """

    values: dict[str, Tensor]
    magnitudes: dict[str, Tensor]
    scores: float  # the largest that has any weight


def visible_keys(call: Call) -> Tensor:
    """Return which keys each query attends to, but for an additive mask: [B, H, Tq, Tk]."""
    B, H, Tq, Tk = call.sizes
    row, key = torch.arange(Tq)[:, None] + Tk - Tq, torch.arange(Tk)
    visible = torch.ones(B, H, Tq, Tk, dtype=torch.bool)
    first = torch.zeros(1, dtype=torch.long)
    if call.options["causal"]:
        visible &= key <= row
    if (ids := call.options["documents"]) is not None:
        ids = ids.expand(B, Tk)
        number = torch.cat([torch.zeros(B, 1), (ids[:, 1:] != ids[:, :-1]).cumsum(1)], dim=1)
        own = number[:, row.flatten().clamp(min=0)][..., None]  # [B, Tq, 1]
        same = (own == number[:, None]) & (row >= 0)
        visible &= same[:, None]
        first = same.long().argmax(-1)[:, None, :, None]
    if (window := call.options["window"]) is not None:
        kept = (key >= first) & (key < first + min(call.options["keep_first"], Tk))
        visible &= (key > row - window) | kept
    mask = call.options["mask"]
    if mask is not None:
        visible &= mask if mask.dtype == torch.bool else mask != -torch.inf
    return visible


def expected(call: Call, dout: Tensor | None = None) -> Expected:
    """Return the output of a call and, with a `dout`, the gradients of its tensors."""
    leaves: dict[int, Tensor] = {}
    t: dict[str, Tensor] = {}
    for name, given in call.tensors.items():
        narrow = call.dtype != torch.float64 and name in ("lam", "sink")  # computed in fp32
        exact = given.detach().float().double() if narrow else given.detach().double()
        t[name] = leaves.setdefault(id(given), exact.requires_grad_())
    maps = [_softmax(call, t["q1"], t["k1"], call.options["scale"], t.get("sink"))]
    A = maps[0].weights
    lam = torch.zeros(1)
    if call.two_maps:
        maps.append(_softmax(call, t["q2"], t["k2"], call.options["scale2"], None))
        lam = t["lam"] if call.lam is None else torch.tensor(call.lam, dtype=call.dtype).double()
        A = A - lam * maps[1].weights
    kept = _kept(call)
    out = (A * kept) @ _heads(t["v"], A.shape[1])
    with torch.no_grad():
        magnitudes = _magnitudes(call, t, maps, lam.abs(), kept, dout)
    values = {"out": out.detach()}
    if dout is not None:
        names = sorted(call.differentiated)
        grads = torch.autograd.grad(out, [t[n] for n in names], dout.double(), allow_unused=True)
        pairs = zip(names, grads, strict=True)
        values |= {n: torch.zeros_like(t[n]) if g is None else g for n, g in pairs}
    return Expected(values, magnitudes, max(m.largest for m in maps))


@dataclass(frozen=True)
class _Map:
    weights: Tensor  # [B, H, Tq, Tk]
    sink: Tensor  # weight of the sink, [B, H, Tq, 1]
    slope: Tensor | float  # of the soft-cap, its terms taken positive
    scale: float
    largest: float  # score that has any weight


def _softmax(call: Call, q: Tensor, k: Tensor, scale: float | None, sink: Tensor | None) -> _Map:
    H = call.sizes[1]
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = (_heads(q, H) * scale) @ _heads(_heads(k, q.shape[1]), H).mT
    size = scores.detach().abs()  # before the soft-cap, which keeps the roundoff of small ones
    slope: Tensor | float = 1.0
    if (cap := call.options["softcap"]) is not None:
        capped = torch.tanh(scores / cap)
        scores, slope = cap * capped, 1 + capped.detach() ** 2
    mask, visible = call.options["mask"], visible_keys(call)
    if mask is not None and mask.dtype != torch.bool:
        bias = mask.double().clamp(min=-1e300)
        scores = scores + bias
        size = torch.where(bias.abs() < 1e6, size + bias.abs(), size)
    scores = scores.masked_fill(~visible, -torch.inf)
    logits = None if sink is None else sink[None, :, None, None]
    top = scores.detach().amax(-1, keepdim=True)
    if logits is not None:
        top = torch.maximum(top, logits.detach())
    top = top.masked_fill(top == -torch.inf, 0.0)
    exponentials = torch.exp(scores - top)
    total = exponentials.sum(-1, keepdim=True)
    at_sink = torch.zeros_like(total) if logits is None else torch.exp(logits - top)
    blind = ~visible.any(-1, keepdim=True)
    total = (total + at_sink).masked_fill(blind, 1.0)
    weights = (exponentials / total).masked_fill(blind, 0.0)
    at_sink = (at_sink / total).masked_fill(blind, 0.0)
    largest = float(torch.where(weights > 1e-9, size, 0.0).max())
    return _Map(weights, at_sink, slope, scale, largest)


def _kept(call: Call) -> Tensor:
    """Return the factors of dropout, which broadcast to [B, H, Tq, Tk]."""
    p = round(call.options["dropout"] * 2**24) / 2**24
    if not p:
        return torch.ones(1, dtype=torch.float64)
    return dropout_mask(call.options["dropout_seed"], p, call.sizes).double() / (1 - p)


def _magnitudes(
    call: Call,
    t: dict[str, Tensor],
    maps: list[_Map],
    lam: Tensor,
    kept: Tensor,
    dout: Tensor | None,
) -> dict[str, Tensor]:
    """Return the magnitudes of the output and of the gradients, from their formulas."""
    H = call.sizes[1]
    v = _heads(t["v"], H).abs()
    A = sum(w * m.weights for w, m in zip((1.0, lam), maps, strict=False)) * kept
    found = {"out": A @ v}
    if dout is None:
        return found
    dout = dout.double().abs()
    dA = dout @ v.mT * kept
    sizes = {"v": [A.mT @ dout]}
    for i, (m, factor) in enumerate(zip(maps, (1.0, lam), strict=False)):
        q, k = ("q1", "k1") if i == 0 else ("q2", "k2")
        D = (m.weights * dA).sum(-1, keepdim=True)
        dS = factor * m.weights * (dA + D) * m.slope * m.scale
        sizes.setdefault(q, []).append(dS @ _heads(_heads(t[k], t[q].shape[1]), H).abs())
        sizes.setdefault(k, []).append(dS.mT @ _heads(t[q], H).abs())
    sizes["lam"] = [D]
    sizes["sink"] = [(maps[0].sink * (maps[0].weights * dA).sum(-1, keepdim=True)).sum((0, 2, 3))]
    for name in call.differentiated:
        same = [n for n in call.tensors if call.tensors[n] is call.tensors[name]]
        parts = [_sum_to(part, t[name]) for n in same for part in sizes[n]]
        found[name] = torch.stack(parts).sum(0)
    return found


def _heads(t: Tensor, heads: int) -> Tensor:
    """Repeat heads: head i of the result is head i // (heads / h)."""
    return t.repeat_interleave(heads // t.shape[1], dim=1)


def _sum_to(t: Tensor, like: Tensor) -> Tensor:
    """Sum over what an argument was broadcast or repeated to."""
    if like.dim() == 4 and like.shape[1] > 1 and like.shape[1] != t.shape[1]:
        t = t.unflatten(1, (like.shape[1], -1)).sum(2)
    return t.sum_to_size(like.shape)
