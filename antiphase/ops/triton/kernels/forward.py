"""The forward kernel: the difference of two online softmaxes, applied to V.

    O = A1 V - lam A2 V,   A_b = softmax(scale_b q_b k_b^T)

One program has BM query rows of one head. With TWO maps it keeps a maximum, a sum and an
accumulator [BM, dv] of each, and loads V once for both. Two accumulators of dv = 256 leave no
registers for tiles that use tensor cores well. There the kernel runs for the noise map, then for
the signal map, and subtracts (SUBTRACT): the same number of products on tiles with more rows. In
16 bits, both terms are then rounded before the difference, as with two calls of a flash kernel.

Blocks of keys that no row sees are never loaded.
"""

import triton
import triton.language as tl

from .blocks import (
    CAUSAL,
    KEPT,
    LOWEST,
    ROWS,
    kept_bounds,
    load_full_rows,
    load_rows,
    of_head,
    online_softmax,
    row_bounds,
    store_rows,
    visible,
)


@triton.jit
def key_blocks(
    m0, bounds, kind_stride, key_range, Tq, Tk, MODE: tl.constexpr, PADDING: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Return which blocks of keys the rows m0 + [0, BM) need, as block numbers.

    Blocks [begin, full) need no mask, [full, end) do. With kept keys there are two ranges: `kept`
    blocks from `first` on, then those from `begin` on.
    """
    i = m0 + tl.arange(0, BM)
    lo, hi = row_bounds(bounds, kind_stride, i, Tq, Tk, MODE)
    end = tl.max(hi, 0)
    begin, full, first, kept = 0, 0, 0, 0
    if MODE >= ROWS:
        some = lo < hi
        begin = tl.min(tl.where(some, lo, Tk), 0)
        end = tl.max(tl.where(some, hi, 0), 0)
    if MODE == KEPT:
        f, k = kept_bounds(bounds, kind_stride, i, Tq)
        some = f < k
        first = tl.min(tl.where(some, f, Tk), 0)
        kept = tl.max(tl.where(some, k, 0), 0)
    if PADDING:
        low, high = tl.load(key_range), tl.load(key_range + 1)
        begin, end = tl.maximum(begin, low), tl.minimum(end, high)
        if MODE == KEPT:
            first, kept = tl.maximum(first, low), tl.minimum(kept, high)
    elif MODE == CAUSAL:
        full = tl.maximum(tl.minimum(m0 + (Tk - Tq) + 1, Tk), 0) // BN
    elif MODE < CAUSAL:
        full = Tk // BN
    begin, end = begin // BN, tl.cdiv(tl.maximum(end, 0), BN)
    if MODE == KEPT:
        first = first // BN
        kept = tl.maximum(tl.cdiv(tl.maximum(kept, 0), BN) - first, 0)
        begin = tl.where(kept > 0, tl.maximum(begin, first + kept), begin)
    return begin, full, tl.maximum(end, begin), first, kept


@triton.jit
def one_map(
    acc, m, l, q, k_base, k_t, v_base, v_t, scale, begin, full, end, first, kept,
    i, bounds, kind_stride, padding, Tq, Tk,
    D: tl.constexpr, BD: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr, BN: tl.constexpr,
    MODE: tl.constexpr, PADDING: tl.constexpr, HOIST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Go over the blocks of keys with one map."""
    keys = tl.arange(0, BN)
    if MODE <= CAUSAL and not PADDING:
        for block in tl.range(begin, full, disable_licm=not HOIST):
            n0 = block * BN
            k = load_full_rows(k_base, n0, k_t, keys, D, BD)
            v = load_full_rows(v_base, n0, v_t, keys, DV, BDV)
            s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
            acc, m, l = online_softmax(acc, m, l, s, v, PRECISION)
        begin = full
    for step in tl.range(0, end - begin + kept, disable_licm=not HOIST):
        block = begin + step
        if MODE == KEPT:
            block = tl.where(step < kept, first + step, begin + step - kept)
        n0 = block * BN
        see = visible(
            i[:, None], (n0 + keys)[None, :], bounds, kind_stride, padding, Tq, Tk, MODE, PADDING
        )
        k = load_rows(k_base, n0, k_t, keys, Tk, D, BD)
        v = load_rows(v_base, n0, v_t, keys, Tk, DV, BDV)
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
        acc, m, l = online_softmax(acc, m, l, tl.where(see, s, -float("inf")), v, PRECISION)
    return acc, m, l


@triton.jit
def two_maps(
    acc1, m1, l1, acc2, m2, l2, q1, q2, k1_base, k1_t, k2_base, k2_t, v_base, v_t, scale1, scale2,
    begin, full, end, first, kept, i, bounds, kind_stride, padding, Tq, Tk,
    D: tl.constexpr, BD: tl.constexpr, D2: tl.constexpr, BD2: tl.constexpr, DV: tl.constexpr,
    BDV: tl.constexpr, BN: tl.constexpr, SHARED: tl.constexpr,
    MODE: tl.constexpr, PADDING: tl.constexpr, HOIST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Go over the blocks of keys with both maps, V (and shared keys) loaded once."""
    keys = tl.arange(0, BN)
    if MODE <= CAUSAL and not PADDING:
        for block in tl.range(begin, full, disable_licm=not HOIST):
            n0 = block * BN
            k1 = load_full_rows(k1_base, n0, k1_t, keys, D, BD)
            v = load_full_rows(v_base, n0, v_t, keys, DV, BDV)
            s = tl.dot(q1, tl.trans(k1), input_precision=PRECISION) * scale1
            acc1, m1, l1 = online_softmax(acc1, m1, l1, s, v, PRECISION)
            k2 = k1 if SHARED else load_full_rows(k2_base, n0, k2_t, keys, D2, BD2)
            s = tl.dot(q2, tl.trans(k2), input_precision=PRECISION) * scale2
            acc2, m2, l2 = online_softmax(acc2, m2, l2, s, v, PRECISION)
        begin = full
    for step in tl.range(0, end - begin + kept, disable_licm=not HOIST):
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
        k2 = k1 if SHARED else load_rows(k2_base, n0, k2_t, keys, Tk, D2, BD2)
        s = tl.dot(q2, tl.trans(k2), input_precision=PRECISION) * scale2
        acc2, m2, l2 = online_softmax(acc2, m2, l2, tl.where(see, s, -float("inf")), v, PRECISION)
    return acc1, m1, l1, acc2, m2, l2


@triton.jit
def inverse(l):
    """Return 1 / l, and 0 for rows that see no key."""
    return tl.where(l > 0, 1.0 / tl.where(l > 0, l, 1.0), 0.0)


@triton.jit
def log_sum_exp(m, l):
    """Return the log-sum-exp in base 2, and 0 for rows that see no key."""
    return tl.where(l > 0, m + tl.log2(tl.where(l > 0, l, 1.0)), 0.0)


@triton.jit
def subtract(Out, Noise, lam, i, Tq, DV: tl.constexpr, BDV: tl.constexpr):
    """Subtract lam A2 V from A1 V in memory, by few columns: registers hold no two such blocks."""
    COLUMNS: tl.constexpr = 32
    for start in range(0, BDV, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        at = i.to(tl.int64)[:, None] * DV + columns[None, :]
        inside = (i < Tq)[:, None] & (columns < DV)[None, :]
        signal = tl.load(Out + at, mask=inside, other=0.0).to(tl.float32)
        noise = tl.load(Noise + at, mask=inside, other=0.0).to(tl.float32)
        difference = signal - lam[:, None] * noise
        tl.store(Out + at, difference.to(Out.dtype.element_ty), mask=inside)


@triton.jit
def forward_kernel(
    Q1, K1, Q2, K2, V, Lam, Sink, Bounds, Padding, KeyRange, Out, Noise, Stats,
    q1_b, q1_h, q1_t, k1_b, k1_h, k1_t, q2_b, q2_h, q2_t, k2_b, k2_h, k2_t, v_b, v_h, v_t,
    lam_b, lam_h, lam_t, bounds_b, kind_stride, padding_b, range_b,
    H, kv_group, noise_group, noise_kv_group, Tq, Tk, scale1, scale2, query_group, value_group,
    D: tl.constexpr, D2: tl.constexpr, DV: tl.constexpr,
    BD: tl.constexpr, BD2: tl.constexpr, BDV: tl.constexpr,
    TWO: tl.constexpr, SHARED: tl.constexpr, MODE: tl.constexpr, PADDING: tl.constexpr,
    SINK: tl.constexpr, PRECISION: tl.constexpr, SAVE: tl.constexpr, SUBTRACT: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, HOIST: tl.constexpr,
):  # fmt: skip
    """Write the output of BM rows of one head; with SAVE also A2 V and the log-sum-exps."""
    m0 = tl.program_id(0) * BM
    bh = tl.program_id(1)
    b, h = (bh // H).to(tl.int64), bh % H
    rows = tl.arange(0, BM)
    i = m0 + rows
    k1_base = of_head(K1, b, k1_b, h, kv_group, k1_h)
    v_base = of_head(V, b, v_b, h, value_group, v_h)
    bounds, padding = Bounds + b * bounds_b, Padding + b * padding_b
    begin, full, end, first, kept = key_blocks(
        m0, bounds, kind_stride, KeyRange + b * range_b, Tq, Tk, MODE, PADDING, BM, BN
    )
    q1 = load_rows(of_head(Q1, b, q1_b, h, query_group, q1_h), m0, q1_t, rows, Tq, D, BD)
    m1 = tl.full([BM], LOWEST, tl.float32)
    l1 = tl.zeros([BM], tl.float32)
    if SINK:  # a key with this logit and a value of zero
        m1 = tl.zeros([BM], tl.float32) + tl.load(Sink + h) * 1.4426950408889634
        l1 += 1.0
    acc1 = tl.zeros([BM, BDV], tl.float32)
    if TWO:
        k2_base = of_head(K2, b, k2_b, h, noise_kv_group, k2_h)
        q2 = load_rows(of_head(Q2, b, q2_b, h, noise_group, q2_h), m0, q2_t, rows, Tq, D2, BD2)
        m2 = tl.full([BM], LOWEST, tl.float32)
        l2 = tl.zeros([BM], tl.float32)
        acc2 = tl.zeros([BM, BDV], tl.float32)
        acc1, m1, l1, acc2, m2, l2 = two_maps(
            acc1, m1, l1, acc2, m2, l2, q1, q2, k1_base, k1_t, k2_base, k2_t, v_base, v_t,
            scale1, scale2, begin, full, end, first, kept,
            i, bounds, kind_stride, padding, Tq, Tk,
            D, BD, D2, BD2, DV, BDV, BN, SHARED, MODE, PADDING, HOIST, PRECISION,
        )  # fmt: skip
    else:
        acc1, m1, l1 = one_map(
            acc1, m1, l1, q1, k1_base, k1_t, v_base, v_t, scale1, begin, full, end, first, kept,
            i, bounds, kind_stride, padding, Tq, Tk,
            D, BD, DV, BDV, BN, MODE, PADDING, HOIST, PRECISION,
        )  # fmt: skip

    row = bh.to(tl.int64) * Tq
    out = acc1 * inverse(l1)[:, None]
    if SAVE:
        tl.store(Stats + row + i, log_sum_exp(m1, l1), mask=i < Tq)
    if TWO or SUBTRACT:
        lam = tl.load(Lam + b * lam_b + h * lam_h + i.to(tl.int64) * lam_t, mask=i < Tq, other=0.0)
    if TWO:
        noise = acc2 * inverse(l2)[:, None]
        out -= lam[:, None] * noise
        if SAVE:
            store_rows(Noise + row * DV, m0, DV, rows, Tq, noise, DV, BDV)
            second = tl.num_programs(1).to(tl.int64) * Tq
            tl.store(Stats + second + row + i, log_sum_exp(m2, l2), mask=i < Tq)
    store_rows(Out + row * DV, m0, DV, rows, Tq, out, DV, BDV)
    if SUBTRACT:
        tl.debug_barrier()  # other threads of this program wrote what is read
        subtract(Out + row * DV, Noise + row * DV, lam, i, Tq, DV, BDV)
