"""Attention by loops over batch, heads, queries and keys, from the definitions; shares no code."""

import math

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF


def mix(x: int) -> int:
    """Hash a 32-bit integer."""
    x ^= x >> 16
    x = x * 0x7FEB352D & _MASK
    x ^= x >> 15
    x = x * 0x846CA68B & _MASK
    return x ^ x >> 16


def is_kept(seed: int, p: float, b: int, h: int, row: int, key: int) -> bool:
    """Tell whether dropout keeps a weight; `row` is the query's position among the keys."""
    bits = mix((mix((seed & _MASK) ^ 0x9E3779B9) + (seed >> 32 & _MASK)) & _MASK)
    bits = mix((bits + b * 0x85EBCA6B + h * 0xC2B2AE35) & _MASK)
    bits = mix((bits + row) & _MASK)
    return mix(bits ^ (key * 0x9E3779B9 & _MASK)) >> 8 >= round(p * 2**24)


def is_visible(
    p: int, j: int, *, causal=False, window=None, keep_first=0, documents=None, b=0
) -> bool:
    """Tell whether the query at position p among the keys attends to key j."""
    if p < 0 and (causal or documents is not None):
        return False
    first = 0
    if documents is not None:
        ids = documents.tolist() if documents.dim() == 1 else documents[b].tolist()
        between = ids[min(p, j) : max(p, j) + 1]
        if any(one != ids[p] for one in between):
            return False
        first = p
        while first > 0 and ids[first - 1] == ids[p]:
            first -= 1
    if causal and j > p:
        return False
    return window is None or p - j < window or j < first + keep_first


def attention_by_loops(
    pairs: list[tuple[Tensor, Tensor]],
    v: Tensor,
    lam: Tensor | None = None,
    *,
    mask: Tensor | None = None,
    sink: Tensor | None = None,
    softcap: float | None = None,
    dropout: float = 0.0,
    seed: int = 0,
    rectify: bool = False,
    **visibility,
) -> Tensor:
    """Return the output for one pair (q, k), or for the difference of two with `lam`."""
    B, H, Tq, _ = pairs[0][0].shape
    Hkv, Tk, dv = v.shape[1:]
    out = []
    for b, h, i in ((b, h, i) for b in range(B) for h in range(H) for i in range(Tq)):
        p = i + Tk - Tq
        keys = [j for j in range(Tk) if is_visible(p, j, b=b, **visibility)]
        if mask is not None:
            row_mask = mask.expand(B, H, Tq, Tk)[b, h, i]
            if mask.dtype == torch.bool:
                keys = [j for j in keys if row_mask[j]]
        rows = []
        for q, k in pairs:
            query = q[b, h // (H // q.shape[1]), i]
            heads = k[b, h // (H // k.shape[1])]
            scores = [query @ heads[j] / math.sqrt(q.shape[-1]) for j in keys]
            if softcap is not None:
                scores = [softcap * torch.tanh(s / softcap) for s in scores]
            if mask is not None and mask.dtype != torch.bool:
                scores = [s + row_mask[j] for s, j in zip(scores, keys, strict=True)]
            weights = [s.exp() for s in scores]
            total = sum(weights) if sink is None else sum(weights) + sink[h].exp()
            rows.append([w / total for w in weights])
        result = torch.zeros(dv, dtype=v.dtype)
        for n, j in enumerate(keys):
            weight = rows[0][n] if lam is None else rows[0][n] - lam[b, h, i, 0] * rows[1][n]
            if rectify:
                weight = torch.relu(weight)
            if dropout and not is_kept(seed, dropout, b, h, p, j):
                continue
            result = (
                result + weight / (1 - round(dropout * 2**24) / 2**24) * v[b, h // (H // Hkv), j]
            )
        out.append(result)
    return torch.stack(out).view(B, H, Tq, dv)
