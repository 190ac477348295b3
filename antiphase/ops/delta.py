"""The gated delta rule (arXiv 2412.06464): a state that is corrected, not only added to.

    S_t = a_t S_{t-1} + k_t u_t^T,  u_t = beta_t (v_t - a_t S_{t-1}^T k_t),  o_t = scale S_t^T q_t

a_t = exp(decay_t) is how much of the state stays. u_t is the difference between the new value and
what the state holds for the key, so writing a key again replaces its value.

`delta_rule` runs by chunks. With S the state before a chunk and G the sums of decay so far in
it, the u_t of the chunk solve a triangular system:

    u_t + beta_t sum_{j < t} e^{G_t - G_j} (k_t . k_j) u_j = beta_t (v_t - e^{G_t} S^T k_t)

`delta_rule_recurrent` is the formula, one token after the other. `delta_map` materialises the map
A with o = A v. Everything is computed in fp32 (fp64 for fp64 inputs).
"""

import torch
from torch import Tensor

from antiphase.ops.arguments import (
    causal_mask,
    repeat_heads,
    statistics_dtype,
    without_autocast,
)
from antiphase.ops.cumulative import document_chunks, in_chunks


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    decay: Tensor,
    *,
    scale: float | None = None,
    keys: Tensor | None = None,
    starts: Tensor | None = None,
    state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute the gated delta rule by chunks; a single token is one step of the recurrence.

    Args:
        q: Queries [B, H, T, d].
        k: Keys [B, Hkv, T, d], of length 1 for a state that stays bounded. Hkv divides H.
        v: Values [B, Hkv, T, dv].
        beta: How much of a value is written [B, Hkv, T], 0 to 1.
        decay: Logarithm of how much of the state stays [B, Hkv, T], at most 0.
        scale: Factor of the output, default d**-0.5.
        keys: Padding mask [B, T], True for tokens. Padding changes no state.
        starts: Where a document starts [B, T], True: with an empty state. By default, none does:
            the first token continues the document of `state`.
        state: The state of an earlier call [B, Hkv, d, dv], or None at the start.

    Returns:
        The output [B, H, T, dv], in the dtype of `v`, and the state [B, Hkv, d, dv].
    """
    if q.shape[2] == 1:
        return delta_rule_recurrent(
            q, k, v, beta, decay, scale=scale, keys=keys, starts=starts, state=state
        )
    with without_autocast(v.device):
        out_dtype, (B, H, T, d) = v.dtype, q.shape
        q, k, v, beta, decay = _normalised(q, k, v, beta, decay, scale, keys)
        S = _empty_state(k, v) if state is None else state.to(v.dtype)
        if starts is None:
            starts = torch.zeros(B, T, dtype=torch.bool, device=q.device)
        ids, ends = document_chunks(starts)  # [B, N, C], [B, 1 + N]
        q, k, v = (in_chunks(t) for t in (q, k, v))  # [B, H | Hkv, N, C, d | dv]
        beta, decay = (in_chunks(t[..., None]) for t in (beta, decay))
        G, D = _decays(decay, ids[:, None])  # [B, Hkv, N, C, 1], [B, Hkv, N, C, C]
        continues = (ids == ends[:, :-1, None])[:, None, ..., None]  # the state's document
        past = G.exp() * continues
        L = (beta * (k @ k.mT) * D).tril(-1)
        right = torch.cat([beta * v, beta * past * k], dim=-1)
        W = torch.linalg.solve_triangular(L, right, upper=False, unitriangular=True)
        written, of_past = W.split([v.shape[-1], d], dim=-1)
        A = (q @ repeat_heads(k, H).mT) * repeat_heads(D, H)
        q = q * repeat_heads(past, H)
        last = (ids == ids[..., -1:])[:, None, ..., None]
        k = k * (G[..., -1:, :] - G).exp() * last
        stays = past[..., -1:, :]  # [B, Hkv, N, 1, 1]
        out = []
        for n in range(ids.shape[1]):
            u = written[:, :, n] - of_past[:, :, n] @ S  # [B, Hkv, C, dv]
            out.append(q[:, :, n] @ repeat_heads(S, H) + A[:, :, n] @ repeat_heads(u, H))
            S = stays[:, :, n] * S + k[:, :, n].mT @ u
        return torch.cat(out, dim=2)[:, :, :T].to(out_dtype), S


def delta_rule_recurrent(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    decay: Tensor,
    *,
    scale: float | None = None,
    keys: Tensor | None = None,
    starts: Tensor | None = None,
    state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute the gated delta rule one token after the other: the formula of `delta_rule`.

    Args:
        q: Queries [B, H, T, d].
        k: Keys [B, Hkv, T, d].
        v: Values [B, Hkv, T, dv].
        beta: How much of a value is written [B, Hkv, T].
        decay: Logarithm of how much of the state stays [B, Hkv, T].
        scale: Factor of the output, default d**-0.5.
        keys: Padding mask [B, T], True for tokens.
        starts: Where a document starts [B, T], True.
        state: The state of an earlier call [B, Hkv, d, dv], or None at the start.

    Returns:
        The output [B, H, T, dv], in the dtype of `v`, and the state [B, Hkv, d, dv].
    """
    with without_autocast(v.device):
        out_dtype, (H, T) = v.dtype, q.shape[1:3]
        q, k, v, beta, decay = _normalised(q, k, v, beta, decay, scale, keys)
        S = _empty_state(k, v) if state is None else state.to(v.dtype)
        out = []
        for t in range(T):
            if starts is not None:
                S = S.masked_fill(starts[:, t, None, None, None], 0.0)
            S = S * decay[:, :, t, None, None].exp()
            k_t, v_t = k[:, :, t, :, None], v[:, :, t, None]  # [B, Hkv, d, 1], [B, Hkv, 1, dv]
            u = beta[:, :, t, None, None] * (v_t - k_t.mT @ S)
            S = S + k_t @ u
            out.append(q[:, :, t : t + 1] @ repeat_heads(S, H))
        return torch.cat(out, dim=2).to(out_dtype), S


def delta_map(
    q: Tensor,
    k: Tensor,
    beta: Tensor,
    decay: Tensor,
    *,
    scale: float | None = None,
    keys: Tensor | None = None,
    starts: Tensor | None = None,
) -> Tensor:
    """Materialise the map of `delta_rule`; memory grows with T^2.

    A value that a later token replaced has lost weight to those who come after. Rows do not sum to
    1, and weights may be negative.

    Args:
        q: Queries [B, H, T, d].
        k: Keys [B, Hkv, T, d].
        beta: How much of a value is written [B, Hkv, T].
        decay: Logarithm of how much of the state stays [B, Hkv, T].
        scale: Factor of the output, default d**-0.5.
        keys: Padding mask [B, T], True for tokens.
        starts: Where a document starts [B, T], True.

    Returns:
        The map [B, H, T, T], in fp32 (fp64 for fp64 inputs).
    """
    with without_autocast(q.device):
        H = q.shape[1]
        q, k, _, beta, decay = _normalised(q, k, k, beta, decay, scale, keys)
        ids = beta.new_zeros(beta[:, 0].shape) if starts is None else starts.cumsum(1)
        _, D = _decays(decay[..., None], ids[:, None])  # [B, Hkv, T, T]
        L = (beta[..., None] * (k @ k.mT) * D).tril(-1)
        written = torch.linalg.solve_triangular(
            L, torch.diag_embed(beta), upper=False, unitriangular=True
        )
        return (q @ repeat_heads(k, H).mT) * repeat_heads(D, H) @ repeat_heads(written, H)


def _normalised(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    decay: Tensor,
    scale: float | None,
    keys: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return all in the dtype of the state, q scaled; padding writes and forgets nothing."""
    dtype = statistics_dtype(v.dtype)
    q, k, v, beta, decay = (t.to(dtype) for t in (q, k, v, beta, decay))
    if keys is not None:
        token = keys[:, None].to(dtype)
        beta, decay = beta * token, decay * token
    return q * (q.shape[-1] ** -0.5 if scale is None else scale), k, v, beta, decay


def _empty_state(k: Tensor, v: Tensor) -> Tensor:
    return k.new_zeros(*k.shape[:2], k.shape[-1], v.shape[-1])


def _decays(decay: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return sums of decay within documents, and e^{G_t - G_j}.

    Args:
        decay: Logarithms [..., C, 1].
        ids: Numbers of the documents, broadcastable to [..., C].

    Returns:
        G, the sum of the tokens of a document so far [..., C, 1]; and e^{G_t - G_j} for j <= t of
        the same document, else 0, [..., C, C].
    """
    C = decay.shape[-2]
    same = (ids[..., :, None] == ids[..., None, :]) & causal_mask(C, C, decay.device)
    G = same.to(decay.dtype) @ decay  # a product: with `cumsum`, gradients would cross documents
    return G, (G - G.mT).masked_fill(~same, -torch.inf).exp()
