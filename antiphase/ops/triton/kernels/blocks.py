"""What the kernels share: loading a block of rows, who sees which keys, one step of the softmax.

Scores are kept in base 2 (scale times log2 e is multiplied in), so that `exp2` is one instruction.
"""

import triton
import triton.language as tl

# Who sees which keys (`MODE` of the kernels). ROWS and KEPT read bounds that `visibility.py` made.
FULL = tl.constexpr(0)  # every row sees every key
CAUSAL = tl.constexpr(1)  # row i sees keys below i + Tk - Tq + 1
ROWS = tl.constexpr(2)  # row i sees keys lo[i] <= j < hi[i]: windows, documents
KEPT = tl.constexpr(3)  # and first[i] <= j < kept[i]: a window with `keep_first`

LOWEST = tl.constexpr(-3.0e38)  # a maximum before any key; finite, so that no difference is NaN


@triton.jit
def of_head(base, b, batch_stride, h, group, head_stride):
    """Return where head h // group of sequence b begins; in 64 bits, for tensors may be large."""
    return base + b * batch_stride + (h // group).to(tl.int64) * head_stride


@triton.jit
def load_rows(base, start, stride, rows, T, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """Load rows start + rows of a matrix, [rows, PADDED]; zeros beyond T and beyond WIDTH."""
    columns = tl.arange(0, PADDED)
    pointers = base + start.to(tl.int64) * stride + rows[:, None] * stride + columns[None, :]
    inside = (start + rows < T)[:, None]
    if WIDTH < PADDED:
        inside = inside & (columns < WIDTH)[None, :]
    return tl.load(pointers, mask=inside, other=0.0)


@triton.jit
def load_full_rows(base, start, stride, rows, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """Load rows that all exist, [rows, PADDED]; zeros beyond WIDTH."""
    columns = tl.arange(0, PADDED)
    pointers = base + start.to(tl.int64) * stride + rows[:, None] * stride + columns[None, :]
    if WIDTH < PADDED:
        return tl.load(pointers, mask=(columns < WIDTH)[None, :], other=0.0)
    return tl.load(pointers)


@triton.jit
def store_rows(base, start, stride, rows, T, block, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """Store a block [rows, PADDED] as rows start + rows of a matrix."""
    columns = tl.arange(0, PADDED)
    pointers = base + start.to(tl.int64) * stride + rows[:, None] * stride + columns[None, :]
    inside = (start + rows < T)[:, None]
    if WIDTH < PADDED:
        inside = inside & (columns < WIDTH)[None, :]
    tl.store(pointers, block.to(base.dtype.element_ty), mask=inside)


@triton.jit
def row_bounds(bounds, kind_stride, i, Tq, Tk, MODE: tl.constexpr):
    """Return the keys lo <= j < hi of query rows i; nothing for rows beyond Tq."""
    inside = i < Tq
    if MODE >= ROWS:
        lo = tl.load(bounds + i, mask=inside, other=0)
        hi = tl.load(bounds + kind_stride + i, mask=inside, other=0)
    else:
        lo = tl.zeros_like(i)
        hi = tl.where(inside, tl.minimum(i + (Tk - Tq) + 1, Tk) if MODE == CAUSAL else Tk, 0)
    return lo, hi


@triton.jit
def kept_bounds(bounds, kind_stride, i, Tq):
    """Return the keys first <= j < kept that rows i see beside their window."""
    inside = i < Tq
    first = tl.load(bounds + 2 * kind_stride + i, mask=inside, other=0)
    kept = tl.load(bounds + 3 * kind_stride + i, mask=inside, other=0)
    return first, kept


@triton.jit
def visible(i, j, bounds, kind_stride, padding, Tq, Tk, MODE: tl.constexpr, PADDING: tl.constexpr):
    """Tell which keys j the rows i see. One of them is a column, the other a row of indices."""
    if MODE >= ROWS:
        lo, hi = row_bounds(bounds, kind_stride, i, Tq, Tk, MODE)
        see = (j >= lo) & (j < hi)
    elif MODE == CAUSAL:
        see = j <= i + (Tk - Tq)  # rows beyond Tq see too much: what they give is zero or not kept
    else:
        see = j < Tk
    if MODE == KEPT:
        first, kept = kept_bounds(bounds, kind_stride, i, Tq)
        see = see | ((j >= first) & (j < kept))
    if PADDING:
        see = see & (tl.load(padding + j, mask=j < Tk, other=0) != 0)
    return see


@triton.jit
def online_softmax(acc, m, l, s, v, PRECISION: tl.constexpr):
    """Add the scores s [rows, keys] of one block to the statistics, and its values to acc."""
    highest = tl.maximum(m, tl.max(s, 1))
    rescale = tl.exp2(m - highest)
    p = tl.exp2(s - highest[:, None])
    l = l * rescale + tl.sum(p, 1)
    acc = tl.dot(p.to(v.dtype), v, acc * rescale[:, None], input_precision=PRECISION)
    return acc, highest, l
