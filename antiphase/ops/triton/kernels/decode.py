"""Decoding, at most 16 query rows: the keys are split over programs, whose results are merged.

The rows of all query heads that share their keys are one block, so that a key is loaded once. Each
program goes over its part of the visible blocks of keys and writes maxima, sums and accumulators of
both maps; `merge_kernel` adds them up, as one softmax over all keys would.
"""

import triton
import triton.language as tl

from .blocks import KEPT, LOWEST, load_rows, of_head, online_softmax, visible
from .forward import inverse, key_blocks


@triton.jit
def load_queries(
    base, head, i, stride_h, stride_t, given, WIDTH: tl.constexpr, PADDED: tl.constexpr
):
    """Load one query row per head and position, [rows, PADDED]; zeros where not given."""
    columns = tl.arange(0, PADDED)
    offsets = head.to(tl.int64) * stride_h + i.to(tl.int64) * stride_t
    inside = given[:, None] & (columns < WIDTH)[None, :]
    return tl.load(base + offsets[:, None] + columns[None, :], mask=inside, other=0.0)


@triton.jit
def decode_kernel(
    Q1, K1, Q2, K2, V, Lam, Sink, Bounds, Padding, KeyRange, Partial, PartialStats,
    q1_b, q1_h, q1_t, k1_b, k1_h, k1_t, q2_b, q2_h, q2_t, k2_b, k2_h, k2_t, v_b, v_h, v_t,
    lam_b, lam_h, lam_t, bounds_b, kind_stride, padding_b, range_b,
    H, kv_group, noise_group, noise_kv_group, Tq, Tk, scale1, scale2, group, groups,
    D: tl.constexpr, D2: tl.constexpr, DV: tl.constexpr,
    BD: tl.constexpr, BD2: tl.constexpr, BDV: tl.constexpr,
    TWO: tl.constexpr, SHARED: tl.constexpr, MODE: tl.constexpr, PADDING: tl.constexpr,
    SINK: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, HOIST: tl.constexpr,
):  # fmt: skip
    """Write maximum, sum and accumulator of each row over one part of the keys."""
    split, splits = tl.program_id(0), tl.num_programs(0)
    bg = tl.program_id(1)
    b, head0 = (bg // groups).to(tl.int64), (bg % groups) * group
    rows, keys = tl.arange(0, BM), tl.arange(0, BN)
    given = rows < group * Tq
    head = head0 + rows // Tq
    i = tl.where(given, rows % Tq, Tq)  # row Tq sees nothing
    bounds, padding = Bounds + b * bounds_b, Padding + b * padding_b
    k1_base = of_head(K1, b, k1_b, head0, kv_group, k1_h)
    v_base = of_head(V, b, v_b, head0, kv_group, v_h)
    q1 = load_queries(Q1 + b * q1_b, head, i, q1_h, q1_t, given, D, BD)
    m1 = tl.full([BM], LOWEST, tl.float32)
    l1 = tl.zeros([BM], tl.float32)
    acc1 = tl.zeros([BM, BDV], tl.float32)
    if TWO:
        k2_base = of_head(K2, b, k2_b, head0, noise_kv_group, k2_h)
        q2 = load_queries(Q2 + b * q2_b, head // noise_group, i, q2_h, q2_t, given, D2, BD2)
        m2 = tl.full([BM], LOWEST, tl.float32)
        l2 = tl.zeros([BM], tl.float32)
        acc2 = tl.zeros([BM, BDV], tl.float32)

    begin, _, end, first, kept = key_blocks(
        0, bounds, kind_stride, KeyRange + b * range_b, Tq, Tk, MODE, PADDING, 16, BN
    )
    steps = end - begin + kept
    per_split = tl.cdiv(steps, splits)
    last = tl.minimum((split + 1) * per_split, steps)
    for step in tl.range(split * per_split, last, disable_licm=not HOIST):
        block = begin + step
        if MODE == KEPT:
            block = tl.where(step < kept, first + step, begin + step - kept)
        n0 = block * BN
        see = visible(
            i[:, None], (n0 + keys)[None, :], bounds, kind_stride, padding, Tq, Tk, MODE, PADDING
        )
        k1 = load_rows(k1_base, n0, k1_t, keys, Tk, D, BD)
        v = load_rows(v_base, n0, v_t, keys, Tk, DV, BDV)
        s = tl.dot(q1, tl.trans(k1), input_precision=PRECISION) * scale1
        acc1, m1, l1 = online_softmax(acc1, m1, l1, tl.where(see, s, -float("inf")), v, PRECISION)
        if TWO:
            k2 = k1 if SHARED else load_rows(k2_base, n0, k2_t, keys, Tk, D2, BD2)
            s = tl.dot(q2, tl.trans(k2), input_precision=PRECISION) * scale2
            s = tl.where(see, s, -float("inf"))
            acc2, m2, l2 = online_softmax(acc2, m2, l2, s, v, PRECISION)

    all_rows = tl.num_programs(1).to(tl.int64) * group * Tq
    row = split * all_rows + bg.to(tl.int64) * group * Tq + rows
    columns = tl.arange(0, BDV)
    inside = given[:, None] & (columns < DV)[None, :]
    tl.store(PartialStats + row, m1, mask=given)
    tl.store(PartialStats + splits * all_rows + row, l1, mask=given)
    tl.store(Partial + row[:, None] * DV + columns[None, :], acc1, mask=inside)
    if TWO:
        tl.store(PartialStats + 2 * splits * all_rows + row, m2, mask=given)
        tl.store(PartialStats + 3 * splits * all_rows + row, l2, mask=given)
        row += splits * all_rows
        tl.store(Partial + row[:, None] * DV + columns[None, :], acc2, mask=inside)


@triton.jit
def merged(partial, stats, row, all_rows, splits, m, l, BDV: tl.constexpr, DV: tl.constexpr):
    """Return one row of a map applied to V, from all parts of the keys."""
    columns = tl.arange(0, BDV)
    acc = tl.zeros([BDV], tl.float32)
    for split in range(splits):
        at = split * all_rows + row
        part = tl.load(partial + at * DV + columns, mask=columns < DV, other=0.0)
        part_m, part_l = tl.load(stats + at), tl.load(stats + splits * all_rows + at)
        highest = tl.maximum(m, part_m)
        old, new = tl.exp2(m - highest), tl.exp2(part_m - highest)
        acc = acc * old + part * new
        l = l * old + part_l * new
        m = highest
    return acc * inverse(l)


@triton.jit
def merge_kernel(
    Partial, PartialStats, Lam, Sink, Out, lam_b, lam_h, lam_t, H, Tq, splits,
    DV: tl.constexpr, BDV: tl.constexpr, TWO: tl.constexpr, SINK: tl.constexpr,
):  # fmt: skip
    """Write one row of the output."""
    i = tl.program_id(0)
    bh = tl.program_id(1)
    b, h = (bh // H).to(tl.int64), bh % H
    all_rows = tl.num_programs(1).to(tl.int64) * Tq
    row = bh.to(tl.int64) * Tq + i
    m = tl.full([], LOWEST, tl.float32)
    l = tl.full([], 0.0, tl.float32)
    if SINK:
        m = tl.load(Sink + h) * 1.4426950408889634
        l += 1.0
    out = merged(Partial, PartialStats, row, all_rows, splits, m, l, BDV, DV)
    if TWO:
        lam = tl.load(Lam + b * lam_b + h * lam_h + i.to(tl.int64) * lam_t)
        second = splits * all_rows
        m = tl.full([], LOWEST, tl.float32)
        l = tl.full([], 0.0, tl.float32)
        out -= lam * merged(
            Partial + second * DV, PartialStats + 2 * second, row, all_rows, splits, m, l, BDV, DV
        )
    columns = tl.arange(0, BDV)
    tl.store(Out + row * DV + columns, out.to(Out.dtype.element_ty), mask=columns < DV)
