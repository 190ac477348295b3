"""Attention maps in linear time, computed by chunks with a running state.

    linear:   A[i, j] = phi(q_i) . phi(k_j) / sum_{j' <= i} phi(q_i) . phi(k_j')      O(T r d)
    prefix:   A[i, j] = exp(s_j) / sum_{j' <= i} exp(s_j')                            O(T d)

Each function returns the output A V and the state after the last key; the next call continues from
that state. Where a document starts (packed sequences), the sums and the state start again.
`linear_map` and `prefix_map` materialise the same maps. Everything is computed in fp32 (fp64 for
fp64 inputs).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from antiphase.ops.arguments import (
    causal_mask,
    repeat_heads,
    statistics_dtype,
    without_autocast,
)
from antiphase.ops.fused_cpu.eager import is_exporting

CHUNK = 32
LOG_ZERO = -1e30  # stands for log 0; finite, so that gradients are


def linear_attention(
    fq: Tensor,
    fk: Tensor,
    v: Tensor,
    *,
    causal: bool,
    keys: Tensor | None = None,
    starts: Tensor | None = None,
    state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute linear attention.

    Args:
        fq: Positive features of the queries [B, H, Tq, r].
        fk: Positive features of the keys [B, Hkv, Tk, r]. Hkv divides H.
        v: Values [B, Hkv, Tk, dv].
        causal: Mask the future. Queries and keys are then the same positions (Tq = Tk).
        keys: Padding mask [B, Tk], True for keys that count.
        starts: Where a document starts [B, Tk], True; only with `causal`. By default, none does:
            the first key continues the document of `state`.
        state: The state of an earlier call [B, Hkv, r, dv + 1], or None at the start.

    Returns:
        The output [B, H, Tq, dv], and the state: sum of phi(k) v^T and, in its last column, of
        phi(k), over the last document.

    Raises:
        ValueError: If `starts` is given without `causal`.
    """
    _check_starts(starts, causal)
    with without_autocast(v.device):
        dtype, out_dtype = statistics_dtype(v.dtype), v.dtype
        fq, fk, v = fq.to(dtype), _zero_padding(fk.to(dtype), keys), v.to(dtype)
        H, T = fq.shape[1:3]
        if state is None:
            state = v.new_zeros(*fk.shape[:2], fk.shape[-1], v.shape[-1] + 1)
        state = state.to(dtype)
        if starts is not None:
            return _linear_over_documents(fq, fk, v, starts, state, out_dtype)
        if not causal or T == 1:
            state = state + fk.mT @ F.pad(v, (0, 1), value=1.0)
            out = fq @ repeat_heads(state, H)
            return _ratio(out[..., :-1], out[..., -1:]).to(out_dtype), state
        fk, v = in_chunks(fk), in_chunks(v)  # [B, Hkv, chunks, C, r | dv]
        S = fk.mT @ v  # [B, Hkv, chunks, r, dv]
        z = fk.flatten(2, 3).cumsum(dim=2)  # [B, Hkv, T, r]
        past_S, past_z = state[..., :-1], state[..., -1]
        after = torch.cat([past_S + S.sum(2), (past_z + z[:, :, -1])[..., None]], dim=-1)
        S = S.cumsum(dim=2) - S + past_S[:, :, None]  # before each chunk
        fk, v, S, z = (repeat_heads(t, H) for t in (fk, v, S, z + past_z[:, :, None]))
        fq = in_chunks(fq)
        fq = _ratio(fq, (fq * z.view_as(fq)).sum(-1, keepdim=True))
        within = (fq @ fk.mT).tril()  # the chunk's own keys
        fq, S, within, v = (t.flatten(0, 2) for t in (fq, S, within, v))
        out = torch.baddbmm(fq @ S, within, v)
        out = out.view(state.shape[0], H, z.shape[2], out.shape[-1])[:, :, :T]
        return out.to(out_dtype), after


def _linear_over_documents(
    fq: Tensor, fk: Tensor, v: Tensor, starts: Tensor, state: Tensor, out_dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return what `linear_attention` returns, causal and with documents that start at `starts`."""
    H, T = fq.shape[1:3]
    fq, fk, v = in_chunks(fq), in_chunks(fk), in_chunks(F.pad(v, (0, 1), value=1.0))
    ids, ends = document_chunks(starts)
    # The state after each chunk: sums over the keys of the document in which the chunk ends.
    last = (ids == ids[..., -1:])[:, None, :, :, None]
    sums = torch.cat([state[:, :, None], (fk * last).mT @ v], dim=2)  # [B, Hkv, 1 + chunks, r, dv]
    same = (ends[:, :, None] == ends[:, None]).tril()[:, None].to(sums.dtype)
    states = (same @ sums.flatten(3)).view_as(sums)
    fk, v, before = (repeat_heads(t, H) for t in (fk, v, states[:, :, :-1]))
    continues = (ids == ends[:, :-1, None])[:, None, :, :, None]
    within = (fq @ fk.mT).tril() * (ids[..., :, None] == ids[..., None, :])[:, None]
    out = ((fq * continues) @ before + within @ v).flatten(2, 3)[:, :, :T]
    return _ratio(out[..., :-1], out[..., -1:]).to(out_dtype), states[:, :, -1]


def linear_map(fq: Tensor, fk: Tensor, visible: Tensor | None = None) -> Tensor:
    """Materialise the attention map of `linear_attention`.

    Args:
        fq: Positive features of the queries [B, H, Tq, r].
        fk: Positive features of the keys [B, Hkv, Tk, r].
        visible: Boolean mask that broadcasts to [B, H, Tq, Tk], True: attend.

    Returns:
        The attention map [B, H, Tq, Tk].
    """
    dtype = statistics_dtype(fq.dtype)
    with without_autocast(fq.device):
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
    starts: Tensor | None = None,
    state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute the mean of v over each prefix, weighted by exp(s): a map that ignores the query.

    Args:
        s: Log weights of the keys [B, Hkv, T].
        v: Values [B, Hkv, T, dv].
        causal: Return the mean of each prefix; if False, one mean over all keys.
        keys: Padding mask [B, T], True for keys that count.
        starts: Where a document starts [B, T], True; only with `causal`. By default, none does:
            the first key continues the document of `state`.
        state: The state of an earlier call [B, Hkv, 1, dv + 2], or None (or zeros) at the start.

    Returns:
        The output [B, Hkv, T, dv] (not causal: T = 1), and the state: the mean so far, whether any
        key has counted, and the log of the sum of weights, over the last document.

    Raises:
        ValueError: If `starts` is given without `causal`.
    """
    _check_starts(starts, causal)
    with without_autocast(v.device):
        dtype, out_dtype = statistics_dtype(v.dtype), v.dtype
        s, v = _mask_padding(s.to(dtype), keys), v.to(dtype)
        if state is None:
            state = v.new_zeros(*v.shape[:2], 1, v.shape[-1] + 2)
        mean, counted, log_sum = state.to(dtype).split([v.shape[-1], 1, 1], dim=-1)
        log_before = log_sum.masked_fill(counted == 0, LOG_ZERO)[..., 0]  # [B, Hkv, 1]
        # The past is prepended as one more key, whose value is the mean so far.
        if not causal or s.shape[-1] == 1:
            if starts is not None:
                log_before = log_before.masked_fill(starts[:, None], LOG_ZERO)
            log_w, values = torch.cat([log_before, s], -1), torch.cat([mean, v], -2)
            W, log_total = _softmax(log_w[:, :, None])
            out = W @ values
            return out.to(out_dtype), _pack_state(out, log_total)
        T = s.shape[-1]
        s, v = in_chunks(s[..., None], LOG_ZERO)[..., 0], in_chunks(v)  # [B, H, chunks, C(, dv)]
        last, ends, ids = s, None, None
        if starts is not None:
            ids, ends = (t[:, None] for t in document_chunks(starts))
            # A chunk leaves to the next ones the keys of the document in which it ends.
            last = s.masked_fill(ids != ids[..., -1:], LOG_ZERO)
            ids = torch.cat([ends[..., :-1, None], ids], -1)  # of the past, then of the chunk
        W, log_chunk = _softmax(last[..., None, :])
        # The state before each chunk is a mean of the same kind, over the chunks.
        log_c = torch.cat([log_before, log_chunk[..., 0]], -1)  # [B, H, 1 + chunks]
        W_past, log_past = _softmax(_prefixes(log_c, ends))
        past = W_past @ torch.cat([mean, (W @ v)[..., 0, :]], -2)
        # Within a chunk: the past as one key, then the chunk's own keys.
        log_w = torch.cat([log_past[..., :-1, None], s], -1)  # [B, H, chunks, 1 + C]
        values = torch.cat([past[..., :-1, None, :], v], -2)
        W, _ = _softmax(_prefixes(log_w, ids))
        out = (W[..., 1:, :] @ values).flatten(2, 3)[:, :, :T]
        return out.to(out_dtype), _pack_state(past[..., -1:, :], log_past[..., -1:])


def prefix_map(s: Tensor, rows: int, visible: Tensor | None = None) -> Tensor:
    """Materialise the attention map of `prefix_attention`.

    Args:
        s: Log weights of the keys [B, Hkv, T].
        rows: Number of query rows.
        visible: Boolean mask that broadcasts to [B, Hkv, rows, T], True: attend.

    Returns:
        The attention map [B, Hkv, rows, T].
    """
    log_w = s.to(statistics_dtype(s.dtype))[:, :, None, :].expand(-1, -1, rows, -1)
    if visible is not None:
        log_w = log_w.masked_fill(~visible, LOG_ZERO)
    return _softmax(log_w)[0]


def _zero_padding(fk: Tensor, keys: Tensor | None) -> Tensor:
    return fk if keys is None else fk * keys[:, None, :, None].to(fk.dtype)


def _mask_padding(s: Tensor, keys: Tensor | None) -> Tensor:
    return s if keys is None else s.masked_fill(~keys[:, None, :], LOG_ZERO)


def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Divide; zeros where the denominator is zero: a row that attends to no key."""
    return numerator / denominator.masked_fill(denominator == 0, 1.0)


def in_chunks(t: Tensor, fill: float = 0.0) -> Tensor:
    """Return [B, H, T, w] as [B, H, chunks, CHUNK, w], padded at the end.

    A program that is recorded has one chunk of length T: the number of chunks of another length
    would be a constant in it.
    """
    if is_exporting():
        return t[:, :, None]
    padding = -t.shape[2] % CHUNK
    if padding:
        t = F.pad(t, (0, 0, 0, padding), value=fill)
    return t.reshape(*t.shape[:2], t.shape[2] // CHUNK, CHUNK, t.shape[-1])


def _softmax(log_w: Tensor) -> tuple[Tensor, Tensor]:
    """Return softmax over the last dimension and its log sum; zeros in a fully masked row."""
    log_sum = log_w.logsumexp(-1)
    empty = (log_sum < LOG_ZERO / 2)[..., None]
    W = torch.softmax(log_w, dim=-1).masked_fill(empty | (log_w < LOG_ZERO / 2), 0.0)
    return W, log_sum


def _prefixes(log_w: Tensor, ids: Tensor | None) -> Tensor:
    """Return [..., n, n]: row i has the keys up to i, with `ids` those of its own document."""
    n = log_w.shape[-1]
    attend = causal_mask(n, n, log_w.device)
    if ids is not None:
        attend = attend & (ids[..., :, None] == ids[..., None, :])
    return log_w[..., None, :].masked_fill(~attend, LOG_ZERO)


def _check_starts(starts: Tensor | None, causal: bool) -> None:
    if starts is not None and not causal:
        raise ValueError(
            "starts: a running sum over documents needs causal=True; without it, apply the map "
            "of linear_map or prefix_map"
        )


def document_chunks(starts: Tensor) -> tuple[Tensor, Tensor]:
    """Number the documents of a call; 0 continues the document of the state.

    Args:
        starts: Where a document starts [B, T].

    Returns:
        The number of each key's document [B, chunks, CHUNK], and those of the documents in which
        the state and then each chunk end [B, 1 + chunks].
    """
    ids = in_chunks(starts[:, None, :, None].long())[:, 0, ..., 0]  # [B, chunks, CHUNK]
    ids = ids.flatten(1).cumsum(1).view_as(ids)
    return ids, F.pad(ids[..., -1], (1, 0))


def _pack_state(mean: Tensor, log_sum: Tensor) -> Tensor:
    counted = log_sum >= LOG_ZERO / 2
    log_sum = log_sum.masked_fill(~counted, 0.0)[..., None]
    return torch.cat([mean, counted[..., None].to(mean.dtype), log_sum], dim=-1)
