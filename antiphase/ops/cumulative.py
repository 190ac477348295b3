"""Noise maps that need no T x T work: each is computed by chunks, with a running state.

    linear:   A[i, j] = phi(q_i) . phi(k_j) / sum_{j' <= i} phi(q_i) . phi(k_j')      O(T r d)
    prefix:   A[i, j] = exp(s_j) / sum_{j' <= i} exp(s_j')                            O(T d)

Each function returns the output A V and the state after the last key, from which the next call goes
on; `linear_map` and `prefix_map` write the same maps down. Everything is in fp32 (fp64 for fp64).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from antiphase.ops.arguments import causal_mask, repeat_heads, statistics_dtype

CHUNK = 32
NOTHING = -1e30  # the logarithm of a weight that is none, finite for the sake of gradients


def linear_attention(
    fq: Tensor,
    fk: Tensor,
    v: Tensor,
    *,
    causal: bool,
    keys: Tensor | None = None,
    state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return linear attention's output [B, H, Tq, dv] and state [B, Hkv, r, dv + 1].

    Positive features fq [B, H, Tq, r], fk [B, Hkv, Tk, r]; v [B, Hkv, Tk, dv]; `keys` [B, Tk] is
    True where a key counts. The state holds sum phi(k) v^T and, in its last column, sum phi(k).
    """
    dtype, out_dtype = statistics_dtype(v.dtype), v.dtype
    fq, fk, v = fq.to(dtype), _counted(fk.to(dtype), keys), v.to(dtype)
    H, T = fq.shape[1:3]
    if state is None:
        state = v.new_zeros(*fk.shape[:2], fk.shape[-1], v.shape[-1] + 1)
    state = state.to(dtype)
    if not causal or T == 1:
        state = state + fk.mT @ F.pad(v, (0, 1), value=1.0)
        out = fq @ repeat_heads(state, H)
        return _ratio(out[..., :-1], out[..., -1:]).to(out_dtype), state
    fk, v = _chunks(fk), _chunks(v)  # [B, Hkv, chunks, C, r | dv]
    S = fk.mT @ v  # [B, Hkv, chunks, r, dv]
    z = fk.flatten(2, 3).cumsum(dim=2)  # [B, Hkv, T, r]
    past_S, past_z = state[..., :-1], state[..., -1]
    after = torch.cat([past_S + S.sum(2), (past_z + z[:, :, -1])[..., None]], dim=-1)
    S = S.cumsum(dim=2) - S + past_S[:, :, None]  # before each chunk
    fk, v, S, z = (repeat_heads(t, H) for t in (fk, v, S, z + past_z[:, :, None]))
    fq = _chunks(fq)
    fq = _ratio(fq, (fq * z.view_as(fq)).sum(-1, keepdim=True))
    near = (fq @ fk.mT).tril()
    fq, S, near, v = (t.flatten(0, 2) for t in (fq, S, near, v))
    out = torch.baddbmm(fq @ S, near, v)  # what came before the chunk, then its own keys
    out = out.view(len(state), H, z.shape[2], out.shape[-1])[:, :, :T]
    return out.to(out_dtype), after


def linear_map(fq: Tensor, fk: Tensor, visible: Tensor | None = None) -> Tensor:
    """Return the map [B, H, Tq, Tk] whose product with V is `linear_attention`'s output.

    `visible` broadcasts to it, True where a query may look.
    """
    dtype = statistics_dtype(fq.dtype)
    A = fq.to(dtype) @ repeat_heads(fk.to(dtype), fq.shape[1]).mT
    if visible is not None:
        A = A * visible
    return _ratio(A, A.sum(-1, keepdim=True))


def prefix_attention(
    s: Tensor,
    v: Tensor,
    *,
    causal: bool,
    keys: Tensor | None = None,
    state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the prefix mean of v weighted by exp(s), [B, Hkv, T, dv] (not causal: T = 1).

    s [B, Hkv, T] in logarithms, v [B, Hkv, T, dv]. The state [B, Hkv, 1, dv + 2] holds the mean so
    far, whether any key was seen, and the logarithm of the weights' sum; zeros mean none was.
    """
    dtype, out_dtype = statistics_dtype(v.dtype), v.dtype
    s, v = _masked(s.to(dtype), keys), v.to(dtype)
    if state is None:
        state = v.new_zeros(*v.shape[:2], 1, v.shape[-1] + 2)
    mean, seen, total = state.to(dtype).split([v.shape[-1], 1, 1], dim=-1)
    log_before = total.masked_fill(seen == 0, NOTHING)[..., 0]  # [B, Hkv, 1]
    # What came before stands in front as one more key, with its mean for a value.
    if not causal or s.shape[-1] == 1:
        log_w, values = torch.cat([log_before, s], -1), torch.cat([mean, v], -2)
        W, log_sum = _softmax(log_w[:, :, None])
        out = W @ values
        return out.to(out_dtype), _packed(out, log_sum)
    T = s.shape[-1]
    s, v = _chunks(s[..., None], NOTHING)[..., 0], _chunks(v)  # [B, H, chunks, C(, dv)]
    W, log_chunk = _softmax(s[..., None, :])
    # The state before each chunk is the same kind of mean, over the chunks.
    log_c = torch.cat([log_before, log_chunk[..., 0]], -1)  # [B, H, 1 + chunks]
    W_past, log_past = _softmax(_prefixes(log_c))
    past = W_past @ torch.cat([mean, (W @ v)[..., 0, :]], -2)
    # Within a chunk: the past as one key, then the chunk's own.
    log_w = torch.cat([log_past[..., :-1, None], s], -1)  # [B, H, chunks, 1 + C]
    values = torch.cat([past[..., :-1, None, :], v], -2)
    W, _ = _softmax(_prefixes(log_w))
    out = (W[..., 1:, :] @ values).flatten(2, 3)[:, :, :T]
    return out.to(out_dtype), _packed(past[..., -1:, :], log_past[..., -1:])


def prefix_map(s: Tensor, rows: int, visible: Tensor | None = None) -> Tensor:
    """Return the map [B, Hkv, rows, T] whose product with V is `prefix_attention`'s output.

    `visible` broadcasts to it, True where a query may look.
    """
    log_w = s.to(statistics_dtype(s.dtype))[:, :, None, :].expand(-1, -1, rows, -1)
    if visible is not None:
        log_w = log_w.masked_fill(~visible, NOTHING)
    return _softmax(log_w)[0]


def _counted(fk: Tensor, keys: Tensor | None) -> Tensor:
    return fk if keys is None else fk * keys[:, None, :, None].to(fk.dtype)


def _masked(s: Tensor, keys: Tensor | None) -> Tensor:
    return s if keys is None else s.masked_fill(~keys[:, None, :], NOTHING)


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    """Return a / b, and zeros where b is zero: a row that sees nothing."""
    return a / b.masked_fill(b == 0, 1.0)


def _chunks(t: Tensor, fill: float = 0.0) -> Tensor:
    """Return [B, H, T, w] as [B, H, chunks, CHUNK, w], filled up at the end."""
    missing = -t.shape[2] % CHUNK
    if missing:
        t = F.pad(t, (0, 0, 0, missing), value=fill)
    return t.reshape(*t.shape[:2], t.shape[2] // CHUNK, CHUNK, t.shape[-1])


def _softmax(log_w: Tensor) -> tuple[Tensor, Tensor]:
    """Return weights over the last dimension and the logarithm of their sum; zeros for nothing."""
    log_sum = log_w.logsumexp(-1)
    blind = (log_sum < NOTHING / 2)[..., None]
    W = torch.softmax(log_w, dim=-1).masked_fill(blind | (log_w < NOTHING / 2), 0.0)
    return W, log_sum


def _prefixes(log_w: Tensor) -> Tensor:
    """Return [..., n, n]: row i has the keys up to i."""
    n = log_w.shape[-1]
    return log_w[..., None, :].masked_fill(~causal_mask(n, n, log_w.device), NOTHING)


def _packed(mean: Tensor, total: Tensor) -> Tensor:
    seen = total >= NOTHING / 2
    total = total.masked_fill(~seen, 0.0)[..., None]
    return torch.cat([mean, seen[..., None].to(mean.dtype), total], dim=-1)
