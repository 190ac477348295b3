"""The Python level: blocks of query rows, one combined map per block, applied to V once.

Runs fp64, and every machine without a compiler. The arithmetic is that of `csrc/`; 16-bit inputs
are computed in fp32.

Heads are split into groups that share no key, value or noise head with each other. A block is some
groups times some query rows, sized so that its maps stay in the caches.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from antiphase.ops.arguments import Arguments, statistics_dtype
from antiphase.ops.dropout import dropout_mask

_BLOCK_ELEMENTS = 1 << 20  # of one map
_ROWS = 128


@dataclass(frozen=True)
class _Block:
    """A block: its batch entries, head groups and query rows, and the keys its rows attend to."""

    batch: slice
    groups: slice
    rows: slice
    keys: slice

    @property
    def at_rows(self) -> tuple[slice, slice, slice, slice]:
        """Return the index of the block's query rows in [B, groups, heads, Tq, ...]."""
        return self.batch, self.groups, slice(None), self.rows

    @property
    def at_keys(self) -> tuple[slice, slice, slice, slice]:
        """Return the index of the block's keys in [B, groups, heads, Tk, ...]."""
        return self.batch, self.groups, slice(None), self.keys


class _HeadGroups:
    """Views of the arguments with the head dimension split into [groups, heads per group]."""

    def __init__(self, args: Arguments):
        self.args = args
        self.B, self.H, self.Tq, _ = args.q1.shape
        self.Tk = args.k1.shape[2]
        self.heads = self.H // args.k1.shape[1]  # per group
        if args.k2 is not None:
            self.heads = math.lcm(self.heads, self.H // args.k2.shape[1])
        self.count = self.H // self.heads
        self.dtype = statistics_dtype(args.q1.dtype)

    def split(self, t: Tensor) -> Tensor:
        """Return [B, h, ...] as [B, groups, h / groups, ...]."""
        return t.view(self.B, self.count, -1, *t.shape[2:])

    def blocks(self) -> Iterator[_Block]:
        """Cut the call into blocks."""
        rows = min(self.Tq, _ROWS if self.Tk < 8192 else _ROWS // 2)
        fit = max(1, _BLOCK_ELEMENTS // (rows * self.Tk * self.heads))
        groups = min(self.count, fit)
        batch = max(1, min(self.B, fit // self.count))
        for b in range(0, self.B, batch):
            for g in range(0, self.count, groups):
                for r in range(0, self.Tq, rows):
                    cut = slice(b, b + batch), slice(r, min(r + rows, self.Tq))
                    yield _Block(cut[0], slice(g, g + groups), cut[1], self.keys_of(*cut))

    def rows(self, t: Tensor, block: _Block) -> Tensor:
        """Cut the query rows [b, g, heads, rows, d] out of [B, h, Tq, d], in statistics' dtype."""
        return self.split(t)[block.at_rows].to(self.dtype)

    def keys(self, t: Tensor, block: _Block) -> Tensor:
        """Cut the keys [b, g, heads, keys, d] out of [B, h, Tk, d], in the statistics' dtype."""
        return self.split(t)[block.at_keys].to(self.dtype)

    def keys_of(self, batch: slice, rows: slice) -> slice:
        """Return a range of keys that contains all that these query rows attend to."""
        args, behind = self.args, self.Tk - self.Tq
        first, last = 0, self.Tk
        if args.documents is not None:
            documents = args.documents[batch, rows]
            first, last = int(documents[..., 0].min()), int(documents[..., 1].max())
        if args.causal:
            last = max(first, min(last, rows.stop + behind))
        if args.window and not args.keep_first:
            first = max(first, min(last, rows.start + behind - args.window + 1))
        return slice(first, last)

    def mask_scores(self, scores: Tensor, block: _Block) -> Tensor:
        """Apply the mask, causality, window and documents to the scores of a block, in place."""
        if (mask := self.args.mask) is not None:
            mask = mask.expand(self.B, self.H, self.Tq, self.Tk)
            mask = self.split(mask)[block.at_rows][..., block.keys]
            if mask.dtype == torch.bool:
                scores.masked_fill_(~mask, -torch.inf)
            else:
                scores += mask.to(self.dtype)
        if (hidden := self.hidden(block)) is not None:
            scores.masked_fill_(hidden, -torch.inf)
        return scores

    def hidden(self, block: _Block) -> Tensor | None:
        """Return which keys are hidden by causality, window or documents, [b, 1, 1, rows, keys]."""
        args = self.args
        row = torch.arange(block.rows.start, block.rows.stop)[:, None] + self.Tk - self.Tq
        key = torch.arange(block.keys.start, block.keys.stop)
        first: Tensor | int = 0
        hidden = key > row if args.causal else None
        if args.documents is not None:
            documents = args.documents[block.batch, None, None, block.rows]
            first, last = documents.unsqueeze(-1).unbind(-2)  # [b, 1, 1, rows, 1]
            other = (key < first) | (key >= last)
            hidden = other if hidden is None else hidden | other
        if args.window:
            assert hidden is not None
            hidden = hidden | ((key <= row - args.window) & (key >= first + args.keep_first))
        return hidden

    def dropout_factors(self, block: _Block) -> Tensor | None:
        """Return 0 or 1 / (1 - p) for each weight of a block, None without dropout."""
        if self.args.seed is None:
            return None
        shape = (self.B, self.H, self.Tq, self.Tk)
        kept = dropout_mask(self.args.seed, self.args.dropout, shape, block.rows)
        kept = self.split(kept)[block.batch, block.groups, :, :, block.keys]
        return kept.to(self.dtype) / (1 - self.args.dropout)

    def every_head(self, t: Tensor) -> Tensor:
        """Repeat the noise maps of a block for the signal heads that share them."""
        return t if t.shape[2] == self.heads else t.repeat_interleave(self.heads // t.shape[2], 2)


def forward(args: Arguments) -> tuple[Tensor, Tensor]:
    """Return the output and the row statistics [2 * maps, B, H, Tq] of `abi.forward`."""
    groups = _HeadGroups(args)
    rows = (groups.B, groups.H, groups.Tq)
    out = args.v.new_empty(*rows, args.v.shape[-1])
    stats = args.v.new_empty(2 * len(args.pairs), *rows, dtype=groups.dtype)
    for block in groups.blocks():
        maps = []
        for i, (q, k, scale) in enumerate(args.pairs):
            one = _map(groups, block, q, k, scale)
            groups.split(stats[2 * i])[block.at_rows] = groups.every_head(one.top / scale)[..., 0]
            groups.split(stats[2 * i + 1])[block.at_rows] = groups.every_head(one.inverse)[..., 0]
            maps.append(groups.every_head(one.weights))
        if args.lam is not None:
            maps[0].addcmul_(maps[1], groups.split(args.lam)[block.at_rows], value=-1)
        if (factors := groups.dropout_factors(block)) is not None:
            maps[0] *= factors
        result = _grouped_matmul(maps[0], groups.keys(args.v, block))
        groups.split(out)[block.at_rows] = result.to(out.dtype)
    return out, stats


def backward(args: Arguments, dout: Tensor) -> tuple[Tensor | None, ...]:
    """Return dq1, dk1, dq2, dk2, dv and, per row, dlam and dsink [B, H, Tq, 1].

    With shared keys, dk1 is the gradient from both maps and dk2 is None.
    """
    groups = _HeadGroups(args)
    per_row = (groups.B, groups.H, groups.Tq, 1)
    dq = [torch.empty(q.shape, dtype=groups.dtype) for q, _, _ in args.pairs]
    dk = [torch.zeros(k.shape, dtype=groups.dtype) for _, k, _ in args.pairs]
    dv = torch.zeros(args.v.shape, dtype=groups.dtype)
    dlam, dsink = (
        None if t is None else torch.empty(per_row, dtype=groups.dtype)
        for t in (args.lam, args.sink)
    )
    for block in groups.blocks():
        dO = groups.rows(dout, block)
        dA = _grouped_matmul(dO, groups.keys(args.v, block).mT)  # [b, g, heads, rows, keys]
        factors = groups.dropout_factors(block)
        if factors is not None:
            dA *= factors
        computed = [_map(groups, block, q, k, scale) for q, k, scale in args.pairs]
        maps = [groups.every_head(one.weights) for one in computed]
        for i, (q, k, scale) in enumerate(args.pairs):
            D = (maps[i] * dA).sum(-1, keepdim=True)
            dS = (dA - D).mul_(maps[i])
            if D.isnan().any():  # keys that a row of NaN does not attend to get no gradient
                dS.masked_fill_(maps[i] == 0, 0.0)
            if i == 1:
                assert args.lam is not None
                assert dlam is not None
                lam = groups.split(args.lam)[block.at_rows]
                groups.split(dlam)[block.at_rows] = -D
                dS *= -lam
                maps[0].addcmul_(maps[1], lam, value=-1)
            elif dsink is not None:
                groups.split(dsink)[block.at_rows] = -computed[0].sink * D
            if (slope := computed[i].slope) is not None:
                dS *= groups.every_head(slope)
            if dS.shape[2] * groups.count != q.shape[1]:  # a noise map that several heads share
                dS = dS.unflatten(2, (q.shape[1] // groups.count, -1)).sum(3)
            dS *= scale
            groups.split(dq[i])[block.at_rows] = _grouped_matmul(dS, groups.keys(k, block))
            _add_to_heads(groups.split(dk[i])[block.at_keys], dS.mT @ groups.rows(q, block))
        if factors is not None:
            maps[0] *= factors
        _add_to_heads(groups.split(dv)[block.at_keys], maps[0].mT @ dO)
    if args.q2 is not None and args.k2 is None:
        dk[0] += dk.pop()
    dtype = args.q1.dtype
    dq1, dq2 = dq if len(dq) == 2 else (dq[0], None)
    dk1, dk2 = dk if len(dk) == 2 else (dk[0], None)
    grads = (None if t is None else t.to(dtype) for t in (dq1, dk1, dq2, dk2, dv))
    return (*grads, dlam, dsink)


class _Map(NamedTuple):
    """One map of a block, [b, g, heads, rows, keys], and what its rows have besides."""

    weights: Tensor
    top: Tensor  # the largest score of each row, [b, g, heads, rows, 1]
    inverse: Tensor  # 1 / the sum of exponentials relative to it
    sink: Tensor  # the weight of the sink, if there is one
    slope: Tensor | None  # the soft-cap's derivative, if there is a cap


def _map(groups: _HeadGroups, block: _Block, q: Tensor, k: Tensor, scale: float) -> _Map:
    """Return one map of a block.

    Noise maps keep their own, fewer heads, unless a mask differs between the signal heads. A row
    that attends to no key is zeros.
    """
    args = groups.args
    scores = _grouped_matmul(groups.rows(q, block) * scale, groups.keys(k, block).mT)
    slope = None
    if args.softcap:
        capped = torch.tanh(scores / args.softcap)
        scores, slope = args.softcap * capped, 1 - capped.square()
    if args.mask is not None:
        scores = groups.every_head(scores)
    scores = groups.mask_scores(scores, block)
    if args.sink is not None:
        sink = args.sink.view(groups.count, groups.heads)[block.groups, :, None, None]
        scores = torch.cat([scores, sink.expand(*scores.shape[:-1], 1)], dim=-1)
    if scores.shape[-1] == 0:
        none = scores.new_zeros(*scores.shape[:-1], 1)
        return _Map(scores, none, none, none, slope)
    top = scores.amax(-1, keepdim=True)
    A = torch.softmax(scores, dim=-1)
    inverse = A.amax(-1, keepdim=True)  # the largest weight is exp(0) / sum
    if top.isnan().any():  # a row of NaN is zero where it does not attend, too
        A.masked_fill_(scores == -torch.inf, 0.0)
    attends_always = args.mask is None and args.sink is None and args.documents is None
    if not attends_always or (args.causal and groups.Tq > groups.Tk):
        empty = top == -torch.inf
        A.masked_fill_(empty, 0.0)
        inverse.masked_fill_(empty, 0.0)
    return _Map(A if args.sink is None else A[..., :-1], top, inverse, A[..., -1:], slope)


def _grouped_matmul(x: Tensor, y: Tensor) -> Tensor:
    """Multiply x [.., h, m, k] by y [.., h', k, n], h' dividing h: neighbouring heads share y."""
    h, m = x.shape[-3:-1]
    shared = y.shape[-3]
    x = x.reshape(*x.shape[:-3], shared, h // shared * m, x.shape[-1])
    return (x @ y).reshape(*x.shape[:-3], h, m, y.shape[-1])


def _add_to_heads(into: Tensor, grad: Tensor) -> None:
    """Add a gradient to a tensor of fewer heads: those of neighbouring heads are summed."""
    if grad.shape[2] != into.shape[2]:
        grad = grad.unflatten(2, (into.shape[2], -1)).sum(3)
    into += grad
