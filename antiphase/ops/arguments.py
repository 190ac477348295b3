"""Validate and normalise the arguments that all backends take.

Backends receive tensors whose shapes, dtypes and devices agree, `lam` as [B, H, Tq, 1] in the
statistics' dtype, `mask` as a 4-d tensor that broadcasts to [B, H, Tq, Tk], and `documents` as a
range of keys per query row.
"""

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from antiphase.ops.documents import document_ranges
from antiphase.ops.dropout import STEPS

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_MOST_KEYS = 1 << 30  # a wider window is the same; a document's first key is added to it in int32


@dataclass(frozen=True)
class Arguments:
    """The validated arguments of one call. With one map, `q2`, `k2` and `lam` are None.

    With two maps that share their keys, `k2` is None, too. A query row i has the position
    p = i + Tk - Tq among the keys. It attends to keys j with `mask`, and

        max(first, p - window + 1) <= j < min(last, p + 1 if causal else Tk)
        or, with `keep_first`, first <= j < min(first + keep_first, p + 1)

    where (first, last) is the range of its document, (0, Tk) without documents.
    """

    q1: Tensor  # [B, H, Tq, d]
    k1: Tensor  # [B, Hkv, Tk, d]
    q2: Tensor | None  # [B, Hn, Tq, d2]
    k2: Tensor | None  # [B, Hkv_n, Tk, d2]; None where k1 serves both maps
    v: Tensor  # [B, Hkv, Tk, dv]
    lam: Tensor | None  # [B, H, Tq, 1], statistics' dtype
    sink: Tensor | None  # [H], statistics' dtype
    mask: Tensor | None  # [B|1, H|1, Tq|1, Tk|1], bool (True: attend) or additive
    causal: bool
    scale1: float
    scale2: float
    documents: Tensor | None = None  # [B, Tq, 2], int32: the row's document, first and past last
    seed: Tensor | None = None  # [], int64, on the CPU; None without dropout
    window: int = 0  # 0: none
    keep_first: int = 0
    dropout: float = 0.0  # 0: none; a multiple of 2^-24
    softcap: float = 0.0  # 0: none

    @property
    def pairs(self) -> list[tuple[Tensor, Tensor, float]]:
        """Return (q, k, scale) of each map, the signal map first."""
        pairs = [(self.q1, self.k1, self.scale1)]
        if self.q2 is not None:
            pairs.append((self.q2, self.k1 if self.k2 is None else self.k2, self.scale2))
        return pairs


def statistics_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of softmax statistics: fp32, or fp64 for fp64 inputs."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which products keep the dtype of their operands.

    Under autocast, `q.float() @ k.float()` would be a product in bf16.

    Args:
        device: Device of the operands.
    """
    on = torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)
    return torch.autocast(device.type, enabled=False) if on else nullcontext()


def repeat_heads(t: Tensor, heads: int) -> Tensor:
    """Repeat the heads of a tensor for grouped-query attention.

    Args:
        t: Tensor [B, h, ...]. h divides `heads`.
        heads: Number of heads of the result.

    Returns:
        A tensor [B, heads, ...] whose head i is head i // (heads / h) of `t`.
    """
    return t if t.shape[1] == heads else t.repeat_interleave(heads // t.shape[1], dim=1)


def causal_mask(rows: int, keys: int, device: torch.device, first_row: int = 0) -> Tensor:
    """Build a causal mask.

    Args:
        rows: Number of query rows.
        keys: Number of keys.
        device: Device of the mask.
        first_row: Position of the first query row among the keys.

    Returns:
        A boolean mask [rows, keys], True where row i attends: keys up to `first_row` + i.
    """
    i = torch.arange(rows, device=device)[:, None] + first_row
    return torch.arange(keys, device=device)[None, :] <= i


def combined_mask(args: Arguments) -> Tensor | None:
    """Return all that hides keys as one boolean mask (True: attend), None if nothing does.

    Causality, window, documents and `mask`. It broadcasts to [B, H, Tq, Tk]. An additive mask
    counts as masked where it is -inf.
    """
    Tq, Tk, device = args.q1.shape[2], args.k1.shape[2], args.q1.device
    attend = causal_mask(Tq, Tk, device, Tk - Tq) if args.causal else None
    key = torch.arange(Tk, device=device)
    first: Tensor | int = 0
    if args.documents is not None:
        first, last = args.documents[:, None, :, :, None].unbind(3)  # each [B, 1, Tq, 1]
        own = (key >= first) & (key < last)
        attend = own if attend is None else attend & own
    if args.window:
        assert attend is not None
        row = torch.arange(Tq, device=device)[:, None] + Tk - Tq
        near = key > row - args.window
        attend = attend & (near | (key < first + args.keep_first) if args.keep_first else near)
    if args.mask is not None:
        given = args.mask if args.mask.dtype == torch.bool else args.mask != -torch.inf
        attend = given if attend is None else attend & given
    return attend


def validate(
    q1: Tensor,
    k1: Tensor,
    q2: Tensor | None,
    k2: Tensor | None,
    v: Tensor,
    lam: Tensor | float | None,
    sink: Tensor | None,
    mask: Tensor | None,
    causal: bool,
    scale: float | None,
    scale2: float | None,
    *,
    window: int | None = None,
    keep_first: int = 0,
    documents: Tensor | None = None,
    dropout: float = 0.0,
    seed: Tensor | None = None,
    softcap: float | None = None,
) -> Arguments:
    """Validate the arguments of one call and bring them into the form that backends expect.

    With a `lam` the call has two maps, without it one. Shapes are those of `Arguments`, but
    `documents` holds the id of each key, [B, Tk] or [Tk]. Dropout needs a `seed`.

    Raises:
        ValueError: If shapes, dtypes or devices do not agree; it names the argument.
    """
    named: dict[str, Tensor | None] = {"q1": q1, "k1": k1, "v": v}
    if lam is not None:
        named |= {"q2": q2, "k2": k2}
    _check_tensors(named)
    B, H, Tq, d = q1.shape
    Hkv, Tk = k1.shape[1:3]
    _expect("k1", k1, (B, "heads that divide q1's", "keys", d), k1.shape[0] == B, k1.shape[3] == d)
    _divides("k1", Hkv, "q1", H)
    _expect("v", v, (B, Hkv, Tk, "any"), v.shape[:3] == (B, Hkv, Tk))
    if q2 is not None and k2 is not None:
        d2 = q2.shape[3]
        _expect("q2", q2, (B, "heads that divide q1's", Tq, "any"), q2.shape[::2] == (B, Tq))
        _divides("q2", q2.shape[1], "q1", H)
        same_keys = k2.shape[::2] == (B, Tk)
        _expect("k2", k2, (B, "heads that divide q2's", Tk, d2), same_keys, k2.shape[3] == d2)
        _divides("k2", k2.shape[1], "q2", q2.shape[1])
    dtype = statistics_dtype(q1.dtype)
    dropout, seed = check_dropout(dropout, seed)
    _check_window(window, keep_first, causal)
    return Arguments(
        q1=q1,
        k1=k1,
        q2=q2,
        k2=None if k2 is k1 else k2,
        v=v,
        lam=None if lam is None else _check_lam(lam, (B, H, Tq), q1.device, dtype),
        sink=None if sink is None else _check_sink(sink, H, q1.device, dtype),
        mask=None if mask is None else _check_mask(mask, (B, H, Tq, Tk), q1.device, dtype),
        causal=causal,
        scale1=_check_scale("scale", scale, d),
        scale2=_check_scale("scale2", scale2, d if q2 is None else q2.shape[3]),
        documents=None if documents is None else _check_documents(documents, B, Tq, k1),
        seed=seed,
        window=min(window or 0, _MOST_KEYS),
        keep_first=min(keep_first, _MOST_KEYS),
        dropout=dropout,
        softcap=_check_softcap(softcap),
    )


def _check_tensors(tensors: dict[str, Tensor | None]) -> None:
    named: dict[str, Tensor] = {}
    for name, t in tensors.items():
        if not isinstance(t, Tensor):
            raise ValueError(f"{name}: got {type(t).__name__}, expected a tensor")
        named[name] = t
        if t.is_nested:
            raise ValueError(
                f"{name}: is a nested tensor, which is not supported; pass the sequences padded "
                "with mask=, or packed into one with documents="
            )
        if t.dim() != 4:
            raise ValueError(
                f"{name}: got shape {tuple(t.shape)}, expected 4 dimensions [B, heads, T, channels]"
            )
        if 0 in t.shape[1:]:
            raise ValueError(f"{name}: got shape {tuple(t.shape)}, expected no empty dimension")
    first = next(iter(named.values()))
    if first.dtype not in DTYPES:
        allowed = ", ".join(str(dtype) for dtype in DTYPES)
        raise ValueError(f"q1: got dtype {first.dtype}, allowed are {allowed}")
    for name, t in named.items():
        if t.dtype != first.dtype:
            raise ValueError(f"{name}: got dtype {t.dtype}, expected q1's dtype {first.dtype}")
        if t.device != first.device:
            raise ValueError(f"{name}: is on {t.device}, expected q1's device {first.device}")


def _expect(name: str, t: Tensor, expected: tuple[object, ...], *conditions: bool) -> None:
    if not all(conditions):
        shape = "[" + ", ".join(str(size) for size in expected) + "]"
        raise ValueError(f"{name}: got shape {tuple(t.shape)}, expected {shape}")


def _divides(name: str, heads: int, of: str, total: int) -> None:
    if total % heads:
        raise ValueError(f"{name}: got {heads} heads, which do not divide {of}'s {total} heads")


def _check_lam(
    lam: Tensor | float, rows: tuple[int, int, int], device: torch.device, dtype: torch.dtype
) -> Tensor:
    shape = (*rows, 1)
    if not isinstance(lam, Tensor):
        if not isinstance(lam, (int, float)):
            raise ValueError(f"lam: got {type(lam).__name__}, expected a number or a tensor")
        return torch.full((1, 1, 1, 1), float(lam), device=device, dtype=dtype).expand(shape)
    if not lam.is_floating_point():
        raise ValueError(f"lam: got dtype {lam.dtype}, expected a floating-point tensor or number")
    if lam.device != device and lam.dim():
        raise ValueError(f"lam: is on {lam.device}, expected q1's device {device}")
    if not _broadcasts(lam.shape, shape):
        raise ValueError(f"lam: got shape {tuple(lam.shape)}, expected one that broadcasts to "
                         f"[B, H, Tq, 1] = {list(shape)}")  # fmt: skip
    return lam.to(device=device, dtype=dtype).expand(shape)


def _check_sink(sink: Tensor, heads: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    if not isinstance(sink, Tensor) or not sink.is_floating_point() or sink.shape != (heads,):
        got = tuple(sink.shape) if isinstance(sink, Tensor) else type(sink).__name__
        raise ValueError(f"sink: got {got}, expected a floating-point tensor of shape [{heads}]")
    if sink.device != device:
        raise ValueError(f"sink: is on {sink.device}, expected q's device {device}")
    return sink.to(dtype)


def _check_mask(
    mask: Tensor, shape: tuple[int, int, int, int], device: torch.device, dtype: torch.dtype
) -> Tensor:
    if not isinstance(mask, Tensor) or not (mask.dtype == torch.bool or mask.is_floating_point()):
        got = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise ValueError(
            f"mask: got {got}, expected a boolean (True: attend) or additive float tensor"
        )
    if mask.device != device:
        raise ValueError(f"mask: is on {mask.device}, expected q1's device {device}")
    if not _broadcasts(mask.shape, shape):
        raise ValueError(f"mask: got shape {tuple(mask.shape)}, expected one that broadcasts to "
                         f"[B, H, Tq, Tk] = {list(shape)}")  # fmt: skip
    if mask.requires_grad:
        raise ValueError("mask: requires grad, which is not supported; pass mask.detach()")
    if mask.dtype == torch.float64 != dtype:  # a finite bias stays finite in the narrower dtype
        hidden = mask == -torch.inf
        mask = mask.clamp(min=torch.finfo(dtype).min).to(dtype).masked_fill(hidden, -torch.inf)
    return mask.reshape((1,) * (4 - mask.dim()) + mask.shape)


def _broadcasts(shape: torch.Size, to: tuple[int, ...]) -> bool:
    sizes = zip(reversed(shape), reversed(to), strict=False)
    return len(shape) <= len(to) and all(size in (1, target) for size, target in sizes)


def _check_scale(name: str, scale: float | None, width: int) -> float:
    if scale is None:
        return 1.0 / math.sqrt(width)
    if not scale > 0:
        raise ValueError(f"{name}: got {scale}, expected a positive number or None for width**-0.5")
    return float(scale)


def _check_window(window: int | None, keep_first: int, causal: bool) -> None:
    for name, value, least in (("window", window, 1), ("keep_first", keep_first, 0)):
        integer = isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool)
        if value is not None and not (integer and value >= least):
            raise ValueError(f"{name}: got {value}, expected an integer of at least {least}")
    if window is not None and not causal:
        raise ValueError(
            f"window: got {window} with causal=False, but a window ends at the query; pass "
            "causal=True, or the window as a mask"
        )
    if keep_first and window is None:
        raise ValueError(
            f"keep_first: got {keep_first} without a window, where no key is left out; "
            "pass window= as well, or leave keep_first out"
        )


def _check_documents(documents: Tensor, B: int, Tq: int, k1: Tensor) -> Tensor:
    Tk = k1.shape[2]
    integer = isinstance(documents, Tensor) and documents.dtype in (torch.int64, torch.int32)
    if not integer or documents.shape not in ((Tk,), (1, Tk), (B, Tk)):
        got = (
            f"{documents.dtype} of shape {tuple(documents.shape)}"
            if isinstance(documents, Tensor)
            else type(documents).__name__
        )
        raise ValueError(
            f"documents: got {got}, expected the document id of every key: int64 or int32, "
            f"[Tk] = [{Tk}] or [B, Tk] = {[B, Tk]}"
        )
    if documents.device != k1.device:
        raise ValueError(f"documents: is on {documents.device}, expected q1's device {k1.device}")
    return document_ranges(documents.reshape(-1, Tk), Tq).expand(B, Tq, 2)


def check_dropout(dropout: float, seed: Tensor | None) -> tuple[float, Tensor | None]:
    """Return the probability as the multiple of 2^-24 that the masks have, and its seed.

    Raises:
        ValueError: If one of them is invalid.
    """
    if not isinstance(dropout, (int, float)) or not 0 <= dropout < 1:
        raise ValueError(f"dropout: got {dropout}, expected a probability, 0 <= dropout < 1")
    dropout = min(round(dropout * STEPS), STEPS - 1) / STEPS
    if not dropout:
        return 0.0, None
    if not isinstance(seed, Tensor) or seed.dtype != torch.int64 or seed.dim() or not seed.is_cpu:
        got = seed if not isinstance(seed, Tensor) else (seed.dtype, tuple(seed.shape), seed.device)
        raise ValueError(
            f"dropout_seed: got {got}, expected an int64 tensor of shape [] on the CPU, "
            "torch.tensor(seed)"
        )
    return dropout, seed


def _check_softcap(softcap: float | None) -> float:
    if softcap is None:
        return 0.0
    if not 0 < softcap < math.inf:
        raise ValueError(f"softcap: got {softcap}, expected a positive number, or None for no cap")
    return float(softcap)
