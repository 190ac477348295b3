"""The Python level: blocks of query rows, one combined map per block, applied to V once.

Runs whatever the C++ level does not support (masks, grouped noise, fp64, odd widths), and every
machine without a compiler. The arithmetic is that of `csrc/`; 16-bit inputs are computed in fp32.

Heads are split into groups that share no key, value or noise head with each other. A block is some
groups times some query rows, sized so that its maps stay in the caches.
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
    """A block: its batch entries, head groups and query rows, and the keys its rows attend to."""

    batch: slice
    groups: slice
    rows: slice
    keys: int

    @property
    def at_rows(self) -> tuple[slice, slice, slice, slice]:
        """Return the index of the block's query rows in [B, groups, heads, Tq, ...]."""
        return self.batch, self.groups, slice(None), self.rows

    @property
    def at_keys(self) -> tuple[slice, slice, slice, slice]:
        """Return the index of the block's keys in [B, groups, heads, Tk, ...]."""
        return self.batch, self.groups, slice(None), slice(self.keys)


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
                    last = min(r + rows, self.Tq)
                    keys = self.Tk
                    if self.args.causal:
                        keys = max(0, min(self.Tk, last + self.Tk - self.Tq))
                    yield _Block(slice(b, b + batch), slice(g, g + groups), slice(r, last), keys)

    def rows(self, t: Tensor, block: _Block) -> Tensor:
        """Cut the query rows [b, g, heads, rows, d] out of [B, h, Tq, d], in statistics' dtype."""
        return self.split(t)[block.at_rows].to(self.dtype)

    def keys(self, t: Tensor, block: _Block) -> Tensor:
        """Cut the keys [b, g, heads, keys, d] out of [B, h, Tk, d], in the statistics' dtype."""
        return self.split(t)[block.at_keys].to(self.dtype)

    def mask_scores(self, scores: Tensor, block: _Block) -> Tensor:
        """Apply the mask and causality to the scores of a block, in place."""
        if (mask := self.args.mask) is not None:
            mask = mask.expand(self.B, self.H, self.Tq, self.Tk)
            mask = self.split(mask)[block.at_rows][..., : block.keys]
            if mask.dtype == torch.bool:
                scores.masked_fill_(~mask, -torch.inf)
            else:
                scores += mask.to(self.dtype)
        if self.args.causal:
            first_row = block.rows.start + self.Tk - self.Tq  # its position among the keys
            first = max(0, first_row)  # all rows attend to the keys before it
            rows = block.rows.stop - block.rows.start
            attend = causal_mask(rows, block.keys - first, scores.device, first_row - first)
            scores[..., first:].masked_fill_(~attend, -torch.inf)
        return scores

    def every_head(self, t: Tensor) -> Tensor:
        """Repeat the noise maps of a block for the signal heads that share them."""
        return t if t.shape[2] == self.heads else t.repeat_interleave(self.heads // t.shape[2], 2)


def forward(args: Arguments) -> tuple[Tensor, Tensor, Tensor]:
    """Return the output and the base-2 log-sum-exp [B, H, Tq] of both maps."""
    groups = _HeadGroups(args)
    rows = (groups.B, groups.H, groups.Tq)
    out = args.v.new_empty(*rows, args.v.shape[-1])
    lse = [args.v.new_empty(rows, dtype=groups.dtype) for _ in args.pairs]
    for block in groups.blocks():
        maps = []
        for i, (q, k, scale) in enumerate(args.pairs):
            A, map_lse = _map(groups, block, q, k, scale)
            groups.split(lse[i])[block.at_rows] = groups.every_head(map_lse)[..., 0]
            maps.append(groups.every_head(A))
        if args.lam is not None:
            maps[0].addcmul_(maps[1], groups.split(args.lam)[block.at_rows], value=-1)
        result = _grouped_matmul(maps[0], groups.keys(args.v, block))
        groups.split(out)[block.at_rows] = result.to(out.dtype)
    return out, lse[0], lse[1] if len(lse) == 2 else lse[0].new_empty(0)


def backward(args: Arguments, dout: Tensor) -> tuple[Tensor | None, ...]:
    """Return dq1, dk1, dq2, dk2, dv and, per row, dlam and dsink [B, H, Tq, 1]."""
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
        maps = [
            groups.every_head(_map(groups, block, q, k, scale)[0]) for q, k, scale in args.pairs
        ]
        for i, (q, k, scale) in enumerate(args.pairs):
            D = (maps[i] * dA).sum(-1, keepdim=True)
            dS = (dA - D).mul_(maps[i])
            if i == 1:
                assert args.lam is not None
                assert dlam is not None
                lam = groups.split(args.lam)[block.at_rows]
                groups.split(dlam)[block.at_rows] = -D
                dS *= -lam
                maps[0].addcmul_(maps[1], lam, value=-1)
            elif dsink is not None:
                sink_weight = 1 - maps[0].sum(-1, keepdim=True)
                groups.split(dsink)[block.at_rows] = -sink_weight * D
            if dS.shape[2] * groups.count != q.shape[1]:  # a noise map that several heads share
                dS = dS.unflatten(2, (q.shape[1] // groups.count, -1)).sum(3)
            dS *= scale
            groups.split(dq[i])[block.at_rows] = _grouped_matmul(dS, groups.keys(k, block))
            _add_to_heads(groups.split(dk[i])[block.at_keys], dS.mT @ groups.rows(q, block))
        _add_to_heads(groups.split(dv)[block.at_keys], maps[0].mT @ dO)
    dtype = args.q1.dtype
    grads: list[Tensor | None] = []
    for pair in zip(dq, dk, strict=True):
        grads += [grad.to(dtype) for grad in pair]
    grads += [None] * (4 - len(grads))
    return (*grads, dv.to(dtype), dlam, dsink)


def _map(
    groups: _HeadGroups, block: _Block, q: Tensor, k: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Return one map [b, g, heads, rows, keys] of a block and its base-2 log-sum-exp.

    Noise maps keep their own, fewer heads, unless a mask differs between the signal heads. A row
    that attends to no key is zeros, with -inf as its log-sum-exp.
    """
    args = groups.args
    scores = _grouped_matmul(groups.rows(q, block) * scale, groups.keys(k, block).mT)
    if args.mask is not None:
        scores = groups.every_head(scores)
    scores = groups.mask_scores(scores, block)
    if args.sink is not None:
        sink = args.sink.view(groups.count, groups.heads)[block.groups, :, None, None]
        scores = torch.cat([scores, sink.expand(*scores.shape[:-1], 1)], dim=-1)
    if scores.shape[-1] == 0:
        return scores, scores.new_full((*scores.shape[:-1], 1), -torch.inf)
    top = scores.amax(-1, keepdim=True)
    A = torch.softmax(scores, dim=-1)
    # The largest weight is exp(top - lse).
    lse = (top - A.amax(-1, keepdim=True).log()) * LOG2E
    if args.mask is not None or (args.causal and groups.Tq > groups.Tk):
        empty = top == -torch.inf
        A.masked_fill_(empty, 0.0)
        lse.masked_fill_(empty, -torch.inf)
    return (A if args.sink is None else A[..., :-1]), lse


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
