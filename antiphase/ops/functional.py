"""Attention as pure tensor functions: one map, or the difference of two, times V."""

from typing import NamedTuple

from torch import Tensor

from antiphase.ops import dispatch, reference
from antiphase.ops.arguments import check
from antiphase.ops.dispatch import Choice


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
    scale: float | None = None,
    scale2: float | None = None,
    backend: str = "auto",
) -> Tensor:
    """Return (softmax(q1 k1^T) - lam softmax(q2 k2^T)) v, [B, H, Tq, dv].

    Shapes: q1 [B, H, Tq, d], k1 [B, Hkv, Tk, d], v [B, Hkv, Tk, dv]; the noise pair
    q2 [B, Hn, Tq, d2], k2 [B, Hkv_n, Tk, d2] may be narrower and have fewer heads. Hkv and Hn
    divide H, Hkv_n divides Hn; head i reads key head i // (H / Hkv) and noise map i // (H / Hn).
    `lam` is a number or broadcasts to [B, H, Tq, 1]. `causal` aligns to the bottom right: the last
    query sees every key. `mask` broadcasts to [B, H, Tq, Tk]: boolean (True: attend) or additive.
    Scales default to width**-0.5. A row that sees nothing gives zeros.
    """
    a = check(q1, k1, q2, k2, v, _given(lam), None, mask, causal, scale, scale2)
    return dispatch.run(a, backend)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    sink: Tensor | None = None,
    causal: bool = False,
    mask: Tensor | None = None,
    scale: float | None = None,
    backend: str = "auto",
) -> Tensor:
    """Return softmax(q k^T) v with one map, V of any width; `sink` [H] adds a logit a head to the
    denominator. Shapes and the other arguments are those of `diff_attention`.
    """
    a = check(q, k, None, None, v, None, sink, mask, causal, scale, None)
    return dispatch.run(a, backend)


def attention_map(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    sink: Tensor | None = None,
    causal: bool = False,
    mask: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """Return the map [B, H, Tq, Tk] that `attention` with the same arguments never writes down."""
    a = check(q, k, None, None, v, None, sink, mask, causal, scale, None)
    return reference.maps(a)[0]


class Maps(NamedTuple):
    """The maps of a differential layer, each [B, H, Tq, Tk]: A = A1 - lam A2."""

    A1: Tensor
    A2: Tensor
    A: Tensor


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
    scale: float | None = None,
    scale2: float | None = None,
) -> Maps:
    """Return the maps that `diff_attention` with the same arguments never writes down."""
    a = check(q1, k1, q2, k2, v, _given(lam), None, mask, causal, scale, scale2)
    A1, A2 = reference.maps(a)
    return Maps(A1, A2, reference.combine(a, [A1, A2]))


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
    scale: float | None = None,
    scale2: float | None = None,
    backend: str = "auto",
) -> Choice:
    """Return which backend and level would serve a call, and why (q2 = k2 = None: `attention`)."""
    if q2 is None and k2 is None:
        a = check(q1, k1, None, None, v, None, sink, mask, causal, scale, None)
    else:
        lam = 0.0 if lam is None else lam
        a = check(q1, k1, q2, k2, v, lam, None, mask, causal, scale, scale2)
    return dispatch.explain(a, backend)


def _given(lam: Tensor | float) -> Tensor | float:
    """Refuse a missing `lam`, which `check` would take for one map."""
    if lam is None:
        raise ValueError("lam: got None, expected a number or a tensor")
    return lam
