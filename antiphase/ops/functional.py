"""Differential attention and standard attention: the functions that users and layers call.

Each function validates its arguments (`arguments.py`) and hands them to a backend (`dispatch.py`).
"""

from typing import NamedTuple

import torch
from torch import Tensor

from antiphase.ops import dispatch, fused_cpu, reference
from antiphase.ops.arguments import check_dropout, combined_mask, validate
from antiphase.ops.dispatch import Choice


class Maps(NamedTuple):
    """The attention maps of one call, each [B, H, Tq, Tk]: A = A1 - lam A2."""

    A1: Tensor  # signal map
    A2: Tensor  # noise map
    A: Tensor  # their difference after dropout, applied to V


def diff_attention(
    q1: Tensor,
    k1: Tensor,
    q2: Tensor,
    k2: Tensor,
    v: Tensor,
    lam: Tensor | float,
    *,
    causal: bool = False,
    mask: Tensor | None = None,
    window: int | None = None,
    keep_first: int = 0,
    documents: Tensor | None = None,
    dropout: float = 0.0,
    dropout_seed: Tensor | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    scale2: float | None = None,
    backend: str = "auto",
) -> Tensor:
    """Compute (softmax(q1 k1^T / sqrt(d)) - lam softmax(q2 k2^T / sqrt(d2))) v.

    The noise pair may be narrower than the signal pair and may have fewer heads. Query head i uses
    key and value head i // (H / Hkv) and noise map i // (H / Hn). A query row that attends to no
    key gives zeros.

    Args:
        q1: Signal queries [B, H, Tq, d].
        k1: Signal keys [B, Hkv, Tk, d]. Hkv divides H.
        q2: Noise queries [B, Hn, Tq, d2]. Hn divides H.
        k2: Noise keys [B, Hkv_n, Tk, d2]. Hkv_n divides Hn.
        v: Values [B, Hkv, Tk, dv].
        lam: A number, or a tensor that broadcasts to [B, H, Tq, 1].
        causal: Mask the future. Aligned to the bottom right: the last query attends to every key.
        mask: Broadcasts to [B, H, Tq, Tk]. Boolean (True: attend) or additive.
        window: Each query attends to this many keys, the last of which is its own position (needs
            `causal`).
        keep_first: With a window, the first keys of the sequence, or of the query's document, that
            stay visible to all later queries (attention sinks).
        documents: Document id of every key, [B, Tk] or [Tk], integers. Queries are the last Tq of
            these positions and attend only to keys of their own document, a run of equal ids.
        dropout: Probability to drop a weight of the map that is applied to V. The others are
            divided by 1 - dropout.
        dropout_seed: Seed of the dropped weights, int64 [] on the CPU; by default drawn from
            PyTorch's generator.
        softcap: Scores s become softcap * tanh(s / softcap), before the mask.
        scale: Factor of the signal scores, default d**-0.5.
        scale2: Factor of the noise scores, default d2**-0.5.
        backend: "auto", "reference", "sdpa", "fused_cpu" or "triton".

    Returns:
        The output [B, H, Tq, dv], in the dtype of `v`, also under autocast.

    Raises:
        ValueError: If shapes, dtypes or devices do not agree, or the backend cannot run the call.
    """
    if _may_decode(backend, documents, dropout, softcap):
        options = (mask, causal, scale, scale2, window, keep_first)
        out = fused_cpu.decode(q1, k1, q2, k2, v, _require(lam), *options)
        if out is not None:
            return out
    args = validate(
        q1, k1, q2, k2, v, _require(lam), None, mask, causal, scale, scale2,
        window=window, keep_first=keep_first, documents=documents, dropout=dropout,
        seed=_seed(dropout, dropout_seed), softcap=softcap,
    )  # fmt: skip
    return dispatch.run(args, backend)


def rectified_attention(
    q1: Tensor,
    k1: Tensor,
    q2: Tensor,
    k2: Tensor,
    v: Tensor,
    lam: Tensor | float,
    *,
    normalise: bool = False,
    causal: bool = False,
    mask: Tensor | None = None,
    window: int | None = None,
    keep_first: int = 0,
    documents: Tensor | None = None,
    dropout: float = 0.0,
    dropout_seed: Tensor | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    scale2: float | None = None,
) -> Tensor:
    """Compute max(A1 - lam A2, 0) v, with `normalise` each row of the map divided by its sum.

    A1 and A2 are the softmax maps of `diff_attention`, which takes the same arguments. The map is
    materialised: there is one implementation, and memory grows with Tq * Tk.

    Args:
        q1: Signal queries [B, H, Tq, d].
        k1: Signal keys [B, Hkv, Tk, d]. Hkv divides H.
        q2: Noise queries [B, Hn, Tq, d2]. Hn divides H.
        k2: Noise keys [B, Hkv_n, Tk, d2]. Hkv_n divides Hn.
        v: Values [B, Hkv, Tk, dv].
        lam: A number, or a tensor that broadcasts to [B, H, Tq, 1].
        normalise: Rows sum to 1. A row without a positive weight gives zeros.
        causal: Mask the future. Aligned to the bottom right: the last query attends to every key.
        mask: Broadcasts to [B, H, Tq, Tk]. Boolean (True: attend) or additive.
        window: Each query attends to this many keys, the last of which is its own position (needs
            `causal`).
        keep_first: With a window, the first keys of the sequence, or of the query's document, that
            stay visible to all later queries (attention sinks).
        documents: Document id of every key, [B, Tk] or [Tk], integers. Queries are the last Tq of
            these positions and attend only to keys of their own document, a run of equal ids.
        dropout: Probability to drop a weight of the map that is applied to V. The others are
            divided by 1 - dropout.
        dropout_seed: Seed of the dropped weights, int64 [] on the CPU; by default drawn from
            PyTorch's generator.
        softcap: Scores s become softcap * tanh(s / softcap), before the mask.
        scale: Factor of the signal scores, default d**-0.5.
        scale2: Factor of the noise scores, default d2**-0.5.

    Returns:
        The output [B, H, Tq, dv], in the dtype of `v`, also under autocast.

    Raises:
        ValueError: If shapes, dtypes or devices do not agree.
    """
    args = validate(
        q1, k1, q2, k2, v, _require(lam), None, mask, causal, scale, scale2,
        window=window, keep_first=keep_first, documents=documents, dropout=dropout,
        seed=_seed(dropout, dropout_seed), softcap=softcap,
    )  # fmt: skip
    A = reference.rectify(reference.combine(args, reference.maps(args)), normalise)
    return reference.apply(reference.drop(A, args.dropout, args.seed), args.v)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    sink: Tensor | None = None,
    causal: bool = False,
    mask: Tensor | None = None,
    window: int | None = None,
    keep_first: int = 0,
    documents: Tensor | None = None,
    dropout: float = 0.0,
    dropout_seed: Tensor | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    backend: str = "auto",
) -> Tensor:
    """Compute softmax(q k^T / sqrt(d)) v: standard attention, with values of any width.

    Args:
        q: Queries [B, H, Tq, d].
        k: Keys [B, Hkv, Tk, d]. Hkv divides H.
        v: Values [B, Hkv, Tk, dv].
        sink: Logit per head [H] that is added to the softmax denominator.
        causal: Mask the future. Aligned to the bottom right: the last query attends to every key.
        mask: Broadcasts to [B, H, Tq, Tk]. Boolean (True: attend) or additive.
        window: Each query attends to this many keys, the last of which is its own position (needs
            `causal`).
        keep_first: With a window, the first keys of the sequence, or of the query's document, that
            stay visible to all later queries (attention sinks).
        documents: Document id of every key, [B, Tk] or [Tk], integers. Queries are the last Tq of
            these positions and attend only to keys of their own document, a run of equal ids.
        dropout: Probability to drop a weight of the map that is applied to V. The others are
            divided by 1 - dropout.
        dropout_seed: Seed of the dropped weights, int64 [] on the CPU; by default drawn from
            PyTorch's generator.
        softcap: Scores s become softcap * tanh(s / softcap), before the mask.
        scale: Factor of the scores, default d**-0.5.
        backend: "auto", "reference", "sdpa", "fused_cpu" or "triton".

    Returns:
        The output [B, H, Tq, dv], in the dtype of `v`, also under autocast.

    Raises:
        ValueError: If shapes, dtypes or devices do not agree, or the backend cannot run the call.
    """
    if sink is None and _may_decode(backend, documents, dropout, softcap):
        options = (mask, causal, scale, None, window, keep_first)
        out = fused_cpu.decode(q, k, None, None, v, None, *options)
        if out is not None:
            return out
    args = validate(
        q, k, None, None, v, None, sink, mask, causal, scale, None,
        window=window, keep_first=keep_first, documents=documents, dropout=dropout,
        seed=_seed(dropout, dropout_seed), softcap=softcap,
    )  # fmt: skip
    return dispatch.run(args, backend)


def attention_map(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    sink: Tensor | None = None,
    causal: bool = False,
    mask: Tensor | None = None,
    window: int | None = None,
    keep_first: int = 0,
    documents: Tensor | None = None,
    dropout: float = 0.0,
    dropout_seed: Tensor | None = None,
    softcap: float | None = None,
    scale: float | None = None,
) -> Tensor:
    """Materialise the attention map of `attention`, which takes the same arguments.

    Args:
        q: Queries [B, H, Tq, d].
        k: Keys [B, Hkv, Tk, d].
        v: Values [B, Hkv, Tk, dv], only validated.
        sink: Logit per head [H]; with it, rows sum to less than 1.
        causal: Mask the future, aligned to the bottom right.
        mask: Broadcasts to [B, H, Tq, Tk]. Boolean (True: attend) or additive.
        window: Each query attends to this many keys, the last of which is its own position (needs
            `causal`).
        keep_first: With a window, the first keys of the sequence, or of the query's document, that
            stay visible to all later queries (attention sinks).
        documents: Document id of every key, [B, Tk] or [Tk], integers. Queries are the last Tq of
            these positions and attend only to keys of their own document, a run of equal ids.
        dropout: Probability to drop a weight of the map that is applied to V. The others are
            divided by 1 - dropout.
        dropout_seed: Seed of the dropped weights, int64 [] on the CPU; by default drawn from
            PyTorch's generator.
        softcap: Scores s become softcap * tanh(s / softcap), before the mask.
        scale: Factor of the scores, default d**-0.5.

    Returns:
        The attention map [B, H, Tq, Tk], in fp32 (fp64 for fp64 inputs).
    """
    args = validate(
        q, k, None, None, v, None, sink, mask, causal, scale, None,
        window=window, keep_first=keep_first, documents=documents, dropout=dropout,
        seed=_seed(dropout, dropout_seed), softcap=softcap,
    )  # fmt: skip
    return reference.drop(reference.maps(args)[0], args.dropout, args.seed)


def attention_maps(
    q1: Tensor,
    k1: Tensor,
    q2: Tensor,
    k2: Tensor,
    v: Tensor,
    lam: Tensor | float,
    *,
    causal: bool = False,
    mask: Tensor | None = None,
    window: int | None = None,
    keep_first: int = 0,
    documents: Tensor | None = None,
    dropout: float = 0.0,
    dropout_seed: Tensor | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    scale2: float | None = None,
) -> Maps:
    """Materialise the attention maps of `diff_attention`, which takes the same arguments.

    Args:
        q1: Signal queries [B, H, Tq, d].
        k1: Signal keys [B, Hkv, Tk, d].
        q2: Noise queries [B, Hn, Tq, d2].
        k2: Noise keys [B, Hkv_n, Tk, d2].
        v: Values [B, Hkv, Tk, dv], only validated.
        lam: A number, or a tensor that broadcasts to [B, H, Tq, 1].
        causal: Mask the future, aligned to the bottom right.
        mask: Broadcasts to [B, H, Tq, Tk]. Boolean (True: attend) or additive.
        window: Each query attends to this many keys, the last of which is its own position (needs
            `causal`).
        keep_first: With a window, the first keys of the sequence, or of the query's document, that
            stay visible to all later queries (attention sinks).
        documents: Document id of every key, [B, Tk] or [Tk], integers. Queries are the last Tq of
            these positions and attend only to keys of their own document, a run of equal ids.
        dropout: Probability to drop a weight of the map that is applied to V. The others are
            divided by 1 - dropout.
        dropout_seed: Seed of the dropped weights, int64 [] on the CPU; by default drawn from
            PyTorch's generator.
        softcap: Scores s become softcap * tanh(s / softcap), before the mask.
        scale: Factor of the signal scores, default d**-0.5.
        scale2: Factor of the noise scores, default d2**-0.5.

    Returns:
        Signal map, noise map and difference, each [B, H, Tq, Tk], in fp32 (fp64 for fp64 inputs).
    """
    args = validate(
        q1, k1, q2, k2, v, _require(lam), None, mask, causal, scale, scale2,
        window=window, keep_first=keep_first, documents=documents, dropout=dropout,
        seed=_seed(dropout, dropout_seed), softcap=softcap,
    )  # fmt: skip
    A1, A2 = reference.maps(args)
    A = reference.combine(args, [A1, A2])
    return Maps(A1, A2, reference.drop(A, args.dropout, args.seed))


def apply_map(
    A: Tensor, v: Tensor, *, dropout: float = 0.0, dropout_seed: Tensor | None = None
) -> Tensor:
    """Apply a materialised attention map to V.

    Args:
        A: Attention map [B, H, Tq, Tk].
        v: Values [B, Hkv, Tk, dv]. Hkv divides H.
        dropout: Probability to drop a weight of the map, as in `attention`.
        dropout_seed: Seed of the dropped weights, int64 [] on the CPU; by default drawn from
            PyTorch's generator.

    Returns:
        The output [B, H, Tq, dv], in the dtype of `v`, also under autocast.
    """
    dropout, seed = check_dropout(dropout, _seed(dropout, dropout_seed))
    return reference.apply(reference.drop(A, dropout, seed), v)


def visible_keys(
    q: Tensor,
    k: Tensor,
    *,
    causal: bool = False,
    mask: Tensor | None = None,
    window: int | None = None,
    keep_first: int = 0,
    documents: Tensor | None = None,
) -> Tensor | None:
    """Return which keys each query attends to, from the arguments of `attention`.

    Args:
        q: Queries [B, H, Tq, d].
        k: Keys [B, Hkv, Tk, d].
        causal: Mask the future, aligned to the bottom right.
        mask: Broadcasts to [B, H, Tq, Tk]. Boolean (True: attend) or additive.
        window: Each query attends to this many keys, the last of which is its own position.
        keep_first: With a window, the first keys that stay visible.
        documents: Document id of every key, [B, Tk] or [Tk], integers.

    Returns:
        A boolean mask that broadcasts to [B, H, Tq, Tk], True: attend; None if nothing is masked.
    """
    args = validate(
        q, k, None, None, k, None, None, mask, causal, None, None,
        window=window, keep_first=keep_first, documents=documents,
    )  # fmt: skip
    return combined_mask(args)


def backend_for(
    q1: Tensor,
    k1: Tensor,
    q2: Tensor | None,
    k2: Tensor | None,
    v: Tensor,
    lam: Tensor | float | None = None,
    *,
    sink: Tensor | None = None,
    causal: bool = False,
    mask: Tensor | None = None,
    window: int | None = None,
    keep_first: int = 0,
    documents: Tensor | None = None,
    dropout: float = 0.0,
    dropout_seed: Tensor | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    scale2: float | None = None,
    backend: str = "auto",
) -> Choice:
    """Report which backend would run a call, and why, without running it.

    Args:
        q1: Signal queries [B, H, Tq, d].
        k1: Signal keys [B, Hkv, Tk, d].
        q2: Noise queries [B, Hn, Tq, d2], or None for a call of `attention`.
        k2: Noise keys [B, Hkv_n, Tk, d2], or None for a call of `attention`.
        v: Values [B, Hkv, Tk, dv].
        lam: A number, or a tensor that broadcasts to [B, H, Tq, 1].
        sink: Logit per head [H], for a call of `attention`.
        causal: Mask the future, aligned to the bottom right.
        mask: Broadcasts to [B, H, Tq, Tk]. Boolean (True: attend) or additive.
        window: Each query attends to this many keys, the last of which is its own position (needs
            `causal`).
        keep_first: With a window, the first keys of the sequence, or of the query's document, that
            stay visible to all later queries (attention sinks).
        documents: Document id of every key, [B, Tk] or [Tk], integers. Queries are the last Tq of
            these positions and attend only to keys of their own document, a run of equal ids.
        dropout: Probability to drop a weight of the map that is applied to V. The others are
            divided by 1 - dropout.
        dropout_seed: Seed of the dropped weights, int64 [] on the CPU; by default drawn from
            PyTorch's generator.
        softcap: Scores s become softcap * tanh(s / softcap), before the mask.
        scale: Factor of the signal scores, default d**-0.5.
        scale2: Factor of the noise scores, default d2**-0.5.
        backend: "auto", "reference", "sdpa", "fused_cpu" or "triton".

    Returns:
        The backend, its level ("c++" or "python", for "fused_cpu") and the reason.
    """
    one_map = q2 is None and k2 is None
    if not one_map:
        sink, lam = None, 0.0 if lam is None else lam
    if dropout and dropout_seed is None:
        dropout_seed = torch.zeros((), dtype=torch.int64)  # nothing is drawn for a report
    args = validate(
        q1, k1, q2, k2, v, None if one_map else lam, sink, mask, causal, scale, scale2,
        window=window, keep_first=keep_first, documents=documents, dropout=dropout,
        seed=dropout_seed, softcap=softcap,
    )  # fmt: skip
    return dispatch.explain(args, backend)


def _seed(dropout: float, given: Tensor | None) -> Tensor | None:
    """Return the seed of a call; drawn on the CPU, so that `torch.manual_seed` repeats it."""
    if given is not None or not dropout:
        return given
    return torch.randint(2**63 - 1, (), device="cpu")


def _require(lam: Tensor | float) -> Tensor | float:
    """Reject a missing `lam`, which `validate` would take for a call with one map."""
    if lam is None:
        raise ValueError("lam: got None, expected a number or a tensor")
    return lam


def _may_decode(
    backend: str, documents: Tensor | None, dropout: float, softcap: float | None
) -> bool:
    """Tell whether the shorter path for decoding may run a call with these arguments."""
    plain = documents is None and not dropout and softcap is None
    return plain and backend in ("auto", "fused_cpu")
