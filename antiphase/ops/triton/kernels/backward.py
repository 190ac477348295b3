"""The backward kernels: row products, then dq1 and dq2 by rows, then dk1, dk2 and dv by keys.

    dP = dO V^T                          shared by both maps
    dS1 = A1 (dP - D1),  dS2 = -lam A2 (dP - D2),   D_b = rowsum(A_b dP) = rowsum(dO (A_b V))
    dq_b = scale_b dS_b k_b,   dk_b = scale_b dS_b^T q_b,   dV = (A1 - lam A2)^T dO

Maps are computed again from the scores and the log-sum-exps. Each value is written by one program,
without atomic additions, so results repeat bit by bit.
"""

import triton
import triton.language as tl

from .blocks import CAUSAL, FULL, KEPT, ROWS, load_rows, of_head, store_rows, visible
from .forward import key_blocks


@triton.jit
def row_products_kernel(
    Out, Noise, DOut, Lam, Deltas, do_b, do_h, do_t, lam_b, lam_h, lam_t, H, Tq,
    DV: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr, TWO: tl.constexpr,
):  # fmt: skip
    """Write D1 and D2 of BM rows: D2 = rowsum(dO (A2 V)), D1 = rowsum(dO O) + lam D2."""
    m0 = tl.program_id(0) * BM
    bh = tl.program_id(1)
    b, h = (bh // H).to(tl.int64), bh % H
    rows = tl.arange(0, BM)
    i = m0 + rows
    row = bh.to(tl.int64) * Tq
    dout_base = of_head(DOut, b, do_b, h, 1, do_h)
    dout = load_rows(dout_base, m0, do_t, rows, Tq, DV, BDV).to(tl.float32)
    out = load_rows(Out + row * DV, m0, DV, rows, Tq, DV, BDV).to(tl.float32)
    D1 = tl.sum(dout * out, 1)
    if TWO:
        noise = load_rows(Noise + row * DV, m0, DV, rows, Tq, DV, BDV).to(tl.float32)
        D2 = tl.sum(dout * noise, 1)
        lam = tl.load(Lam + b * lam_b + h * lam_h + i.to(tl.int64) * lam_t, mask=i < Tq, other=0.0)
        D1 += lam * D2
        tl.store(Deltas + tl.num_programs(1).to(tl.int64) * Tq + row + i, D2, mask=i < Tq)
    tl.store(Deltas + row + i, D1, mask=i < Tq)


@triton.jit
def dq_kernel(
    Q1, K1, Q2, K2, V, Lam, Sink, Bounds, Padding, KeyRange, DOut, Stats, Deltas, DQ1, DQ2,
    q1_b, q1_h, q1_t, k1_b, k1_h, k1_t, q2_b, q2_h, q2_t, k2_b, k2_h, k2_t, v_b, v_h, v_t,
    lam_b, lam_h, lam_t, bounds_b, kind_stride, padding_b, range_b,
    H, kv_group, noise_group, noise_kv_group, Tq, Tk, scale1, scale2, do_b, do_h, do_t,
    D: tl.constexpr, D2: tl.constexpr, DV: tl.constexpr,
    BD: tl.constexpr, BD2: tl.constexpr, BDV: tl.constexpr,
    TWO: tl.constexpr, SHARED: tl.constexpr, MODE: tl.constexpr, PADDING: tl.constexpr,
    SINK: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, HOIST: tl.constexpr,
):  # fmt: skip
    """Write dq1 and dq2 of BM rows of one head; dq2 per signal head, in fp32 if it is summed."""
    m0 = tl.program_id(0) * BM
    bh = tl.program_id(1)
    b, h = (bh // H).to(tl.int64), bh % H
    rows, keys = tl.arange(0, BM), tl.arange(0, BN)
    i = m0 + rows
    row = bh.to(tl.int64) * Tq
    k1_base = of_head(K1, b, k1_b, h, kv_group, k1_h)
    v_base = of_head(V, b, v_b, h, kv_group, v_h)
    bounds, padding = Bounds + b * bounds_b, Padding + b * padding_b
    begin, _, end, first, kept = key_blocks(
        m0, bounds, kind_stride, KeyRange + b * range_b, Tq, Tk, MODE, PADDING, BM, BN
    )
    q1 = load_rows(of_head(Q1, b, q1_b, h, 1, q1_h), m0, q1_t, rows, Tq, D, BD)
    dout = load_rows(of_head(DOut, b, do_b, h, 1, do_h), m0, do_t, rows, Tq, DV, BDV)
    lse1 = tl.load(Stats + row + i, mask=i < Tq, other=0.0)
    delta1 = tl.load(Deltas + row + i, mask=i < Tq, other=0.0)
    dq1 = tl.zeros([BM, BD], tl.float32)
    if TWO:
        k2_base = of_head(K2, b, k2_b, h, noise_kv_group, k2_h)
        q2 = load_rows(of_head(Q2, b, q2_b, h, noise_group, q2_h), m0, q2_t, rows, Tq, D2, BD2)
        second = tl.num_programs(1).to(tl.int64) * Tq
        lse2 = tl.load(Stats + second + row + i, mask=i < Tq, other=0.0)
        delta2 = tl.load(Deltas + second + row + i, mask=i < Tq, other=0.0)
        dq2 = tl.zeros([BM, BD2], tl.float32)
    for step in tl.range(0, end - begin + kept, disable_licm=not HOIST):
        block = begin + step
        if MODE == KEPT:
            block = tl.where(step < kept, first + step, begin + step - kept)
        n0 = block * BN
        see = visible(
            i[:, None], (n0 + keys)[None, :], bounds, kind_stride, padding, Tq, Tk, MODE, PADDING
        )
        v = load_rows(v_base, n0, v_t, keys, Tk, DV, BDV)
        dP = tl.dot(dout, tl.trans(v), input_precision=PRECISION)
        k1 = load_rows(k1_base, n0, k1_t, keys, Tk, D, BD)
        s = tl.dot(q1, tl.trans(k1), input_precision=PRECISION) * scale1
        A = tl.where(see, tl.exp2(s - lse1[:, None]), 0.0)
        dS = (A * (dP - delta1[:, None])).to(k1.dtype)
        dq1 = tl.dot(dS, k1, dq1, input_precision=PRECISION)
        if TWO:
            k2 = k1 if SHARED else load_rows(k2_base, n0, k2_t, keys, Tk, D2, BD2)
            s = tl.dot(q2, tl.trans(k2), input_precision=PRECISION) * scale2
            A = tl.where(see, tl.exp2(s - lse2[:, None]), 0.0)
            dS = (A * (dP - delta2[:, None])).to(k2.dtype)
            dq2 = tl.dot(dS, k2, dq2, input_precision=PRECISION)
    dq1 *= scale1 * 0.6931471805599453  # scales have log2 e in them
    store_rows(DQ1 + row * D, m0, D, rows, Tq, dq1, D, BD)
    if TWO:
        lam = tl.load(Lam + b * lam_b + h * lam_h + i.to(tl.int64) * lam_t, mask=i < Tq, other=0.0)
        dq2 *= -lam[:, None] * (scale2 * 0.6931471805599453)
        store_rows(DQ2 + row * D2, m0, D2, rows, Tq, dq2, D2, BD2)


@triton.jit
def dkv_kernel(
    Q1, K1, Q2, K2, V, Lam, Sink, Bounds, Padding, KeyRange, DOut, Stats, Deltas, RowRanges,
    DK1, DK2, DVs,
    q1_b, q1_h, q1_t, k1_b, k1_h, k1_t, q2_b, q2_h, q2_t, k2_b, k2_h, k2_t, v_b, v_h, v_t,
    lam_b, lam_h, lam_t, bounds_b, kind_stride, padding_b, range_b,
    H, kv_group, noise_group, noise_kv_group, Tq, Tk, scale1, scale2, do_b, do_h, do_t,
    row_ranges_b, row_kind_stride, group, groups,
    D: tl.constexpr, D2: tl.constexpr, DV: tl.constexpr,
    BD: tl.constexpr, BD2: tl.constexpr, BDV: tl.constexpr,
    TWO: tl.constexpr, SHARED: tl.constexpr, MODE: tl.constexpr,
    SINK: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, HOIST: tl.constexpr,
):  # fmt: skip
    """Write dk1, dk2 and dv of BN keys, summed over `group` query heads that share these keys.

    Scores are transposed, [keys, rows], so that their products with dO and q need no transpose.
    Masks are intervals of rows per key (ROWS: from memory). Without a mask, keys beyond Tk and rows
    beyond Tq give nothing that is kept: these keys are not stored, and dO of these rows is zero.
    """
    n0 = tl.program_id(0) * BN
    bg = tl.program_id(1)
    b, head = (bg // groups).to(tl.int64), (bg % groups) * group
    rows, keys = tl.arange(0, BM), tl.arange(0, BN)
    j = n0 + keys
    begin, end = 0, Tq
    if MODE == CAUSAL:
        begin = tl.maximum(n0 - (Tk - Tq), 0)
    if MODE == ROWS:
        ranges = RowRanges + b * row_ranges_b + j
        first_row = tl.load(ranges, mask=j < Tk, other=0)
        past_row = tl.load(ranges + row_kind_stride, mask=j < Tk, other=0)
        some = first_row < past_row
        begin = tl.min(tl.where(some, first_row, Tq), 0)
        end = tl.max(tl.where(some, past_row, 0), 0)
    blocks = tl.cdiv(tl.maximum(end - begin, 0), BM)

    k1 = load_rows(of_head(K1, b, k1_b, head, kv_group, k1_h), n0, k1_t, keys, Tk, D, BD)
    v = load_rows(of_head(V, b, v_b, head, kv_group, v_h), n0, v_t, keys, Tk, DV, BDV)
    dk1 = tl.zeros([BN, BD], tl.float32)
    dv = tl.zeros([BN, BDV], tl.float32)
    if TWO:
        second = (tl.num_programs(1) // groups).to(tl.int64) * H * Tq
        if SHARED:
            k2 = k1
        else:
            k2_base = of_head(K2, b, k2_b, head, noise_kv_group, k2_h)
            k2 = load_rows(k2_base, n0, k2_t, keys, Tk, D2, BD2)
            dk2 = tl.zeros([BN, BD2], tl.float32)
    for step in tl.range(0, group * blocks, disable_licm=not HOIST):
        h = head + step // blocks
        m0 = begin + step % blocks * BM
        i = m0 + rows
        row = (b * H + h) * Tq
        dout = load_rows(of_head(DOut, b, do_b, h, 1, do_h), m0, do_t, rows, Tq, DV, BDV)
        dP = tl.dot(v, tl.trans(dout), input_precision=PRECISION)  # [keys, rows]
        q1 = load_rows(of_head(Q1, b, q1_b, h, 1, q1_h), m0, q1_t, rows, Tq, D, BD)
        lse1 = tl.load(Stats + row + i, mask=i < Tq, other=0.0)
        s = tl.dot(k1, tl.trans(q1), input_precision=PRECISION) * scale1
        A = tl.exp2(s - lse1[None, :])
        if MODE == ROWS:
            see = (i[None, :] >= first_row[:, None]) & (i[None, :] < past_row[:, None])
            A = tl.where(see, A, 0.0)
        if MODE == CAUSAL:
            see = j[:, None] <= i[None, :] + (Tk - Tq)
            A = tl.where(see, A, 0.0)
        delta1 = tl.load(Deltas + row + i, mask=i < Tq, other=0.0)
        dS = (A * (dP - delta1[None, :])).to(q1.dtype)
        dk1 = tl.dot(dS, q1, dk1, input_precision=PRECISION)
        if TWO:
            q2_base = of_head(Q2, b, q2_b, h, noise_group, q2_h)
            q2 = load_rows(q2_base, m0, q2_t, rows, Tq, D2, BD2)
            lse2 = tl.load(Stats + second + row + i, mask=i < Tq, other=0.0)
            lam_base = Lam + b * lam_b + h * lam_h
            lam = tl.load(lam_base + i.to(tl.int64) * lam_t, mask=i < Tq, other=0.0)
            s = tl.dot(k2, tl.trans(q2), input_precision=PRECISION) * scale2
            A2 = tl.exp2(s - lse2[None, :]) * -lam[None, :]
            if MODE != FULL:
                A2 = tl.where(see, A2, 0.0)
            delta2 = tl.load(Deltas + second + row + i, mask=i < Tq, other=0.0)
            dS = A2 * (dP - delta2[None, :])
            if SHARED:
                dS = (dS * (scale2 / scale1)).to(q2.dtype)
                dk1 = tl.dot(dS, q2, dk1, input_precision=PRECISION)
            else:
                dk2 = tl.dot(dS.to(q2.dtype), q2, dk2, input_precision=PRECISION)
            A += A2
        dv = tl.dot(A.to(dout.dtype), dout, dv, input_precision=PRECISION)

    keys_before = bg.to(tl.int64) * Tk
    dk1 *= scale1 * 0.6931471805599453
    store_rows(DK1 + keys_before * D, n0, D, keys, Tk, dk1, D, BD)
    store_rows(DVs + keys_before * DV, n0, DV, keys, Tk, dv, DV, BDV)
    if TWO and not SHARED:
        dk2 *= scale2 * 0.6931471805599453
        store_rows(DK2 + keys_before * D2, n0, D2, keys, Tk, dk2, D2, BD2)
