"""Differential attention from two calls of `F.scaled_dot_product_attention`, on any device.

Flash kernels need queries, keys and values of one width; otherwise PyTorch silently materialises
the attention map. So q and k or v are padded with zeros to the wider of the two: scores do not
change, and the extra output channels are dropped. Two padded calls cost less than four calls over
halves of V. Maps that share their keys (DIFF V2) are one call with twice the query heads.

Windows and documents become masks. SDPA has no soft-cap, and its dropout would draw a mask for each
map, so these calls take the formula of `reference`.
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from antiphase.ops import reference
from antiphase.ops.arguments import Arguments, combined_mask, repeat_heads
from antiphase.ops.fused_cpu.eager import is_exporting


def forward(args: Arguments) -> Tensor:
    """Return the output [B, H, Tq, dv]."""
    if args.softcap or args.dropout:
        return reference.forward(args)
    causal = bool(args.causal and args.q1.shape[2] > 1)  # a single query attends to every key
    mask, empty = args.mask, None
    masked = mask is not None or args.window or args.documents is not None
    if masked or (causal and args.q1.shape[2] != args.k1.shape[2]):
        mask, empty = _mask_and_empty_rows(args)
        causal = False
    if _share_all_but_queries(args):
        outputs = list(_two_maps_in_one_call(args, mask, causal))
    else:
        outputs = [_one_map(args, q, k, scale, mask, causal) for q, k, scale in args.pairs]
    out = outputs[0]
    if args.lam is not None:
        out = (out - args.lam * outputs[1]).to(args.v.dtype)
    return out if empty is None else out.masked_fill(empty, 0.0)


def is_one_flash_call(args: Arguments) -> bool:
    """Tell whether a flash kernel computes both maps in one call (DIFF V2) on a GPU."""
    Tq, Tk = args.q1.shape[2], args.k1.shape[2]
    unmasked = args.mask is None and args.documents is None and not args.window
    return (
        _share_all_but_queries(args)
        and unmasked
        and not (args.softcap or args.dropout)
        and (not args.causal or Tq in (1, Tk))
        and args.q1.dtype in (torch.bfloat16, torch.float16)
        and args.q1.shape[3] == args.v.shape[3]
    )


def _share_all_but_queries(args: Arguments) -> bool:
    """Tell whether both maps have the same keys, number of heads and scale."""
    q2 = args.q2
    same = q2 is not None and args.k2 is None and q2.shape == args.q1.shape
    return same and args.scale1 == args.scale2 and args.sink is None


def _two_maps_in_one_call(args: Arguments, mask: Tensor | None, causal: bool) -> tuple[Tensor, ...]:
    """Return both maps applied to V, as twice the query heads.

    The queries of a pair are adjacent, so that both belong to the same key and value head.
    """
    assert args.q2 is not None
    q = torch.stack([args.q1, args.q2], dim=2).flatten(1, 2)  # [B, 2H, Tq, d]
    if mask is not None and mask.shape[1] != 1:
        mask = mask.repeat_interleave(2, dim=1)
    both = replace(args, q1=q, q2=None, lam=None)
    return _one_map(both, q, args.k1, args.scale1, mask, causal).unflatten(1, (-1, 2)).unbind(2)


def _mask_and_empty_rows(args: Arguments) -> tuple[Tensor, Tensor]:
    """Return causality and the given mask as one mask, and which rows attend to no key.

    Empty rows are unmasked, so that no kernel divides by zero; `forward` zeroes their output.
    """
    attend = combined_mask(args)
    assert attend is not None
    empty = ~attend.any(dim=-1, keepdim=True)
    if args.mask is None or args.mask.dtype == torch.bool:
        return attend | empty, empty
    dtype = args.q1.dtype
    # A finite bias stays finite in a narrower dtype.
    lowest = max(torch.finfo(dtype).min, torch.finfo(args.mask.dtype).min)
    bias = args.mask.clamp_min(lowest).to(dtype)
    bias = bias.expand(torch.broadcast_shapes(bias.shape, attend.shape))
    return bias.masked_fill(~attend, -torch.inf).masked_fill(empty, 0.0), empty


def _one_map(
    args: Arguments, q: Tensor, k: Tensor, scale: float, mask: Tensor | None, causal: bool
) -> Tensor:
    """Return softmax(scale q k^T + mask) v of one map."""
    H, Tq, dv = args.q1.shape[1], q.shape[2], args.v.shape[-1]
    q, v = repeat_heads(q, H), args.v
    # Only the CPU flash kernel groups heads in every case. On CUDA, `enable_gqa` with a mask or in
    # fp32 falls back to a materialised map. Exporters may not know it.
    flash = mask is None and q.dtype in (torch.bfloat16, torch.float16)
    grouped = (q.device.type == "cpu" or flash) and args.sink is None and k.shape[1] == v.shape[1]
    grouped = grouped and not is_exporting()
    if not grouped:
        k, v = repeat_heads(k, H), repeat_heads(v, H)
    if args.sink is not None:
        q, k, v, mask = _with_sink(args.sink, q, k, v, mask, scale, causal)
    width = max(q.shape[-1], v.shape[-1])
    q, k, v = (F.pad(t, (0, width - t.shape[-1])) if t.shape[-1] < width else t for t in (q, k, v))
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=grouped
    )
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
    """Prepend a key whose score is the sink's logit and whose value is zero.

    One more channel carries the logit: 1 in every query, sink / scale in the new key, 0 in the
    others. When causal, a query is prepended too, which keeps the diagonal in place; the caller
    drops its output.
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
