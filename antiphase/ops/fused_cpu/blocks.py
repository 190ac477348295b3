"""The Python level: blocks of query rows, one combined map, one product with V.

Serves whatever the C++ level does not (masks, grouped noise, fp64, odd widths) and every machine
without a compiler. The arithmetic is that of `csrc/`; 16-bit inputs are computed in fp32.

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

    def hide(self, s: Tensor, at: _Block) -> Tensor:
        """Put the mask on the scores of a block, in place: -inf where a query may not look."""
        if (mask := self.a.mask) is not None:
            mask = mask.expand(self.B, self.H, self.Tq, self.Tk)
            mask = self.split(mask)[at.batches, at.units, :, at.rows, : at.seen]
            if mask.dtype == torch.bool:
                s.masked_fill_(~mask, -torch.inf)
            else:
                s += mask.to(self.dtype)
        if self.a.causal:
            first = max(0, at.rows.start + self.Tk - self.Tq)  # keys before it are seen by all
            rows = at.rows.stop - at.rows.start
            offset = at.rows.start + self.Tk - self.Tq - first
            seen = causal_mask(rows, at.seen - first, s.device, offset)
            s[..., first:].masked_fill_(~seen, -torch.inf)
        return s


def _grouped(x: Tensor, y: Tensor) -> Tensor:
    """X [.., h, m, k] times y [.., h', k, n] where h' divides h: neighbours share y."""
    h, m = x.shape[-3:-1]
    shared = y.shape[-3]
    x = x.reshape(*x.shape[:-3], shared, h // shared * m, x.shape[-1])
    return (x @ y).reshape(*x.shape[:-3], h, m, y.shape[-1])


def _map(u: _Units, at: _Block, q: Tensor, k: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Return one map [b, u, heads, rows, seen] of a block and its base-2 normalisers.

    A noise map keeps its own, fewer heads unless a mask tells the signal heads apart. A row that
    sees nothing is zeros, with -inf as its normaliser.
    """
    s = _grouped(u.rows(q, at) * scale, u.keys(k, at).mT)
    if u.a.mask is not None:
        s = _every_head(u, s)
    s = u.hide(s, at)
    if u.a.sink is not None:
        sink = u.a.sink.view(u.count, u.heads)[at.units, :, None, None]
        s = torch.cat([s, sink.expand(*s.shape[:-1], 1)], dim=-1)
    if s.shape[-1] == 0:
        return s, s.new_full((*s.shape[:-1], 1), -torch.inf)
    top = s.amax(-1, keepdim=True)
    p = torch.softmax(s, dim=-1)
    # The largest weight is exp(top - normaliser).
    normaliser = (top - p.amax(-1, keepdim=True).log()) * LOG2E
    if u.a.mask is not None or (u.a.causal and u.Tq > u.Tk):
        blind = top == -torch.inf
        p.masked_fill_(blind, 0.0)
        normaliser.masked_fill_(blind, -torch.inf)
    return (p if u.a.sink is None else p[..., :-1]), normaliser


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
        maps = []
        for i, (q, k, scale) in enumerate(a.pairs):
            p, normaliser = _map(u, at, q, k, scale)
            u.split(lse[i])[at.batches, at.units, :, at.rows] = _every_head(u, normaliser)[..., 0]
            maps.append(_every_head(u, p))
        if a.lam is not None:
            maps[0].addcmul_(maps[1], u.split(a.lam)[at.batches, at.units, :, at.rows], value=-1)
        result = _grouped(maps[0], u.keys(a.v, at))
        u.split(out)[at.batches, at.units, :, at.rows] = result.to(out.dtype)
    return out, lse[0], lse[1] if len(lse) == 2 else lse[0].new_empty(0)


def backward(a: Arguments, dout: Tensor) -> tuple[Tensor | None, ...]:
    """Return dq1, dk1, dq2, dk2, dv and, a row, dlam and dsink [B, H, Tq, 1]."""
    u = _Units(a)
    dq = [torch.empty(q.shape, dtype=u.dtype) for q, _, _ in a.pairs]
    dk = [torch.zeros(k.shape, dtype=u.dtype) for _, k, _ in a.pairs]
    dv = torch.zeros(a.v.shape, dtype=u.dtype)
    dlam, dsink = (
        None if t is None else torch.empty(u.B, u.H, u.Tq, 1, dtype=u.dtype)
        for t in (a.lam, a.sink)
    )
    for at in u.blocks():
        g = u.rows(dout, at)
        dA = _grouped(g, u.keys(a.v, at).mT)  # [b, u, heads, rows, seen]
        maps = [_every_head(u, _map(u, at, q, k, scale)[0]) for q, k, scale in a.pairs]
        for i, (q, k, scale) in enumerate(a.pairs):
            D = (maps[i] * dA).sum(-1, keepdim=True)
            dS = (dA - D).mul_(maps[i])
            if i == 1:
                assert a.lam is not None
                assert dlam is not None
                lam = u.split(a.lam)[at.batches, at.units, :, at.rows]
                u.split(dlam)[at.batches, at.units, :, at.rows] = -D
                dS *= -lam
                maps[0].addcmul_(maps[1], lam, value=-1)
            elif dsink is not None:
                left = 1 - maps[0].sum(-1, keepdim=True)  # the sink's share
                u.split(dsink)[at.batches, at.units, :, at.rows] = -left * D
            if dS.shape[2] * u.count != q.shape[1]:  # a noise map that several heads share
                dS = dS.unflatten(2, (q.shape[1] // u.count, -1)).sum(3)
            dS *= scale
            u.split(dq[i])[at.batches, at.units, :, at.rows] = _grouped(dS, u.keys(k, at))
            into = u.split(dk[i])[at.batches, at.units, :, : at.seen]
            _add_to_heads(into, dS.mT @ u.rows(q, at))
        _add_to_heads(u.split(dv)[at.batches, at.units, :, : at.seen], maps[0].mT @ g)
    dtype = a.q1.dtype
    grads: list[Tensor | None] = [g.to(dtype) for pair in zip(dq, dk, strict=True) for g in pair]
    grads += [None] * (4 - len(grads))
    return (*grads, dv.to(dtype), dlam, dsink)
