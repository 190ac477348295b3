"""Differential attention from `F.scaled_dot_product_attention`, for any device it serves.

Flash kernels want queries, keys and values of one width and silently give way to the materialised
form otherwise. So both sides are padded with zeros to the wider of the two: scores keep their
value, the surplus output channels are dropped. Two calls so cost less than four over halves of V.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from antiphase.ops.arguments import Arguments, repeat_heads, visible


def forward(a: Arguments) -> Tensor:
    """Return the output [B, H, Tq, dv]."""
    causal = a.causal and a.q1.shape[2] > 1  # a single query sees every key
    mask, blind = a.mask, None
    if mask is not None or (causal and a.q1.shape[2] != a.k1.shape[2]):
        mask, blind = _one_mask(a)
        causal = False
    outputs = [_one_map(a, q, k, scale, mask, causal) for q, k, scale in a.pairs]
    out = outputs[0] if a.lam is None else (outputs[0] - a.lam * outputs[1]).to(a.v.dtype)
    return out if blind is None else out.masked_fill(blind, 0.0)


def _one_mask(a: Arguments) -> tuple[Tensor, Tensor]:
    """Return causality and the given mask as one, and the rows that see nothing.

    Those rows are opened, so that no kernel divides by zero; their output is dropped.
    """
    may = visible(a)
    assert may is not None
    blind = ~may.any(dim=-1, keepdim=True)
    if a.mask is None or a.mask.dtype == torch.bool:
        return may | blind, blind
    dtype = a.q1.dtype
    # A finite bias stays finite in a narrower dtype.
    lowest = max(torch.finfo(dtype).min, torch.finfo(a.mask.dtype).min)
    added = a.mask.clamp_min(lowest).to(dtype)
    added = added.expand(torch.broadcast_shapes(added.shape, may.shape))
    return added.masked_fill(~may, -torch.inf).masked_fill(blind, 0.0), blind


def _one_map(
    a: Arguments, q: Tensor, k: Tensor, scale: float, mask: Tensor | None, causal: bool
) -> Tensor:
    """Return softmax(q k^T) v of one map."""
    H, Tq, dv = a.q1.shape[1], q.shape[2], a.v.shape[-1]
    q, k, v = (repeat_heads(t, H) for t in (q, k, a.v))
    if a.sink is not None:
        q, k, v, mask = _with_sink(a.sink, q, k, v, mask, scale, causal)
    width = max(q.shape[-1], v.shape[-1])
    q, k, v = (F.pad(t, (0, width - t.shape[-1])) if t.shape[-1] < width else t for t in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=scale)
    return out[..., -Tq:, :dv]


def _with_sink(
    sink: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scale: float,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Put a key in front whose score is the sink's logit and whose value is zero.

    One more channel carries the logit: 1 in every query, sink / scale in the new key, 0 in the
    others. When causal, a query in front keeps the diagonal where it was; it is dropped later.
    """
    B, H, _, d = q.shape
    q = F.pad(q, (0, 1), value=1.0)
    if causal:
        q = F.pad(q, (0, 0, 1, 0))
    first = (sink / scale).to(k.dtype)[None, :, None, None].expand(B, H, 1, 1)
    first = torch.cat([first.new_zeros(B, H, 1, d), first], dim=-1)
    k = torch.cat([first, F.pad(k, (0, 1))], dim=2)
    v = F.pad(v, (0, 0, 1, 0))
    if mask is not None:
        mask = F.pad(
            mask.expand(*mask.shape[:-1], k.shape[2] - 1), (1, 0), value=mask.dtype == torch.bool
        )
    return q, k, v, mask
