"""The Python level: blocks of query rows, one combined map, one product with V.

Serves whatever the C++ level does not (masks, grouped noise, fp64, odd widths) and every machine
without a compiler. The arithmetic is that of `kernel.cpp`; 16-bit inputs are computed in fp32.

Heads are cut into units: the fewest neighbouring heads that share no key, value or noise head with
the rest. A block is some units times some query rows, sized so that its maps stay in the caches.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from antiphase.ops.arguments import Arguments, causal_mask, statistics_dtype

LOG2E = math.log2(math.e)
_BLOCK_ELEMENTS = 1 << 20  # of one map
_ROWS = 128


@dataclass(frozen=True)
class _Block:
    """Where a block lies: batches, units and query rows, and the keys its rows can see."""

    batches: slice
    units: slice
    rows: slice
    seen: int


class _Units:
    """Views of the arguments with the head dimension split into [units, heads a unit]."""

    def __init__(self, a: Arguments):
        self.a = a
        self.B, self.H, self.Tq, _ = a.q1.shape
        self.Tk = a.k1.shape[2]
        group = self.H // a.k1.shape[1]
        if a.k2 is not None:
            group = math.lcm(group, self.H // a.k2.shape[1])
        self.count = self.H // group
        self.heads = group
        self.dtype = statistics_dtype(a.q1.dtype)

    def split(self, t: Tensor) -> Tensor:
        """[B, h, ...] -> [B, units, h / units, ...]."""
        return t.view(self.B, self.count, -1, *t.shape[2:])

    def blocks(self) -> Iterator[_Block]:
        rows = min(self.Tq, _ROWS if self.Tk < 8192 else _ROWS // 2)
        fit = max(1, _BLOCK_ELEMENTS // (rows * self.Tk * self.heads))
        units = min(self.count, fit)
        batches = max(1, min(self.B, fit // self.count))
        for b in range(0, self.B, batches):
            for u in range(0, self.count, units):
                for r in range(0, self.Tq, rows):
                    last = min(r + rows, self.Tq)
                    seen = self.Tk
                    if self.a.causal:
                        seen = max(0, min(self.Tk, last + self.Tk - self.Tq))
                    yield _Block(slice(b, b + batches), slice(u, u + units), slice(r, last), seen)

    def rows(self, t: Tensor, at: _Block) -> Tensor:
        """Cut query rows [b, u, heads, rows, d] out of [B, h, Tq, d], in the statistics' dtype."""
        return self.split(t)[at.batches, at.units, :, at.rows].to(self.dtype)

    def keys(self, t: Tensor, at: _Block) -> Tensor:
        """Cut visible keys [b, u, heads, seen, d] out of [B, h, Tk, d], likewise."""
        return self.split(t)[at.batches, at.units, :, : at.seen].to(self.dtype)

    def bias(self, at: _Block) -> tuple[Tensor | None, Tensor | None]:
        """Return what is hidden in a block and what the mask adds, broadcastable to its map."""
        hidden, added = None, None
        if self.a.causal:
            first = at.rows.start + self.Tk - self.Tq
            rows = at.rows.stop - at.rows.start
            hidden = ~causal_mask(rows, at.seen, self.a.q1.device, first)
        if (mask := self.a.mask) is not None:
            mask = mask.expand(self.B, self.H, self.Tq, self.Tk)
            mask = self.split(mask)[at.batches, at.units, :, at.rows, : at.seen]
            if mask.dtype == torch.bool:
                hidden = ~mask if hidden is None else hidden | ~mask
            else:
                added = mask.to(self.dtype)
        return hidden, added


def _grouped(x: Tensor, y: Tensor) -> Tensor:
    """X [.., h, m, k] times y [.., h', k, n] where h' divides h: neighbours share y."""
    h, m = x.shape[-3:-1]
    shared = y.shape[-3]
    x = x.reshape(*x.shape[:-3], shared, h // shared * m, x.shape[-1])
    return (x @ y).reshape(*x.shape[:-3], h, m, y.shape[-1])


def _scores(u: _Units, at: _Block, q: Tensor, k: Tensor, scale: float) -> Tensor:
    """Return base-2 scores [b, u, heads, rows, seen] of one map, -inf where it may not look."""
    s = _grouped(u.rows(q, at) * (scale * LOG2E), u.keys(k, at).mT)
    hidden, added = u.bias(at)
    if s.shape[2] != u.heads and added is not None:
        s = s.repeat_interleave(u.heads // s.shape[2], dim=2)
    if added is not None:
        s = torch.add(s, added, alpha=LOG2E)
    if hidden is not None:
        if s.shape[2] != u.heads and hidden.dim() > 2:
            s = s.repeat_interleave(u.heads // s.shape[2], dim=2)
        s.masked_fill_(hidden, -torch.inf)
    return s


def _every_head(u: _Units, t: Tensor) -> Tensor:
    """Repeat a noise map for the signal heads of its group."""
    return t if t.shape[2] == u.heads else t.repeat_interleave(u.heads // t.shape[2], dim=2)


def _add_to_heads(into: Tensor, grad: Tensor) -> None:
    """Add a gradient of more heads to a tensor of fewer: neighbours are summed."""
    if grad.shape[2] != into.shape[2]:
        grad = grad.unflatten(2, (into.shape[2], -1)).sum(3)
    into += grad


def forward(a: Arguments) -> tuple[Tensor, Tensor, Tensor]:
    """Return the output and the base-2 row normalisers [B, H, Tq] of both maps."""
    u = _Units(a)
    out = a.v.new_empty(u.B, u.H, u.Tq, a.v.shape[-1])
    lse = [a.v.new_empty(u.B, u.H, u.Tq, dtype=u.dtype) for _ in a.pairs]
    for at in u.blocks():
        combined = None
        for i, (q, k, scale) in enumerate(a.pairs):
            s = _scores(u, at, q, k, scale)
            normaliser = _logsumexp2(u, at, s)  # [b, u, heads, rows, 1]
            p = _map(s, normaliser)
            u.split(lse[i])[at.batches, at.units, :, at.rows] = _every_head(u, normaliser)[..., 0]
            if combined is None:
                combined = p
            else:
                combined -= _every_head(u, p) * _lam(u, at)
        assert combined is not None
        result = _grouped(combined, u.keys(a.v, at))
        u.split(out)[at.batches, at.units, :, at.rows] = result.to(out.dtype)
    return out, lse[0], lse[1] if len(lse) == 2 else lse[0].new_empty(0)


def _lam(u: _Units, at: _Block) -> Tensor:
    assert u.a.lam is not None
    return u.split(u.a.lam)[at.batches, at.units, :, at.rows]


def _logsumexp2(u: _Units, at: _Block, s: Tensor) -> Tensor:
    """Return the base-2 log of a row's sum of 2^s, the sink included; -inf if it sees nothing."""
    top = s.amax(-1, keepdim=True) if at.seen else s.new_full((*s.shape[:-1], 1), -torch.inf)
    sink = None
    if u.a.sink is not None:
        sink = (u.a.sink * LOG2E).view(u.count, u.heads)[at.units, :, None, None]
        top = torch.maximum(top, sink)
    shift = top.masked_fill(top == -torch.inf, 0.0)
    total = torch.exp2(s - shift).sum(-1, keepdim=True)
    if sink is not None:
        total += torch.exp2(sink - shift)
    return total.log2() + shift


def _map(s: Tensor, normaliser: Tensor) -> Tensor:
    """Turn scores into a map, in place; a row that sees nothing becomes zeros."""
    blind = normaliser == -torch.inf
    return s.sub_(normaliser.masked_fill(blind, 0.0)).exp2_()


def backward(a: Arguments, dout: Tensor, lse1: Tensor, lse2: Tensor) -> tuple[Tensor | None, ...]:
    """Return dq1, dk1, dq2, dk2, dv and, a row, dlam and dsink [B, H, Tq, 1]."""
    u = _Units(a)
    lse = (lse1, lse2)
    dq = [torch.empty(q.shape, dtype=u.dtype) for q, _, _ in a.pairs]
    dk = [torch.zeros(k.shape, dtype=u.dtype) for _, k, _ in a.pairs]
    dv = torch.zeros(a.v.shape, dtype=u.dtype)
    row_sums = [lse1.new_empty(u.B, u.H, u.Tq, 1) for _ in a.pairs]  # D of each map
    for at in u.blocks():
        g = u.rows(dout, at)
        dA = _grouped(g, u.keys(a.v, at).mT)  # [b, u, heads, rows, seen]
        combined = torch.zeros((), dtype=u.dtype)
        for i, (q, k, scale) in enumerate(a.pairs):
            weight = -_lam(u, at) if i else None  # of the map in the difference
            p = _map(
                _every_head(u, _scores(u, at, q, k, scale)),
                u.split(lse[i])[at.batches, at.units, :, at.rows, None],
            )
            D = (p * dA).sum(-1, keepdim=True)
            u.split(row_sums[i])[at.batches, at.units, :, at.rows] = D
            combined = p if weight is None else torch.addcmul(combined, weight, p)
            dS = (dA - D).mul_(p)
            if weight is not None:
                dS *= weight
            if dS.shape[2] * u.count != q.shape[1]:  # a noise map that several heads share
                dS = dS.unflatten(2, (q.shape[1] // u.count, -1)).sum(3)
            u.split(dq[i])[at.batches, at.units, :, at.rows] = _grouped(dS, u.keys(k, at)) * scale
            into = u.split(dk[i])[at.batches, at.units, :, : at.seen]
            _add_to_heads(into, dS.mT @ u.rows(q, at) * scale)
        _add_to_heads(u.split(dv)[at.batches, at.units, :, : at.seen], combined.mT @ g)
    dtype = a.q1.dtype
    pairs = [grad.to(dtype) for both in zip(dq, dk, strict=True) for grad in both]
    dlam = dsink = None
    if a.lam is not None:
        dlam = -row_sums[1]
    else:
        pairs += [None, None]  # type: ignore[list-item]
    if a.sink is not None:
        weight = torch.exp2(a.sink[:, None, None] * LOG2E - lse1[..., None])
        dsink = -weight * row_sums[0]
    return (*pairs, dv.to(dtype), dlam, dsink)
