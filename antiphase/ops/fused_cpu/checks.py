"""The checks that the operators make themselves, so that no direct call reads beyond a tensor.

Calls through `antiphase.ops` were validated before, with errors for users; these are for programs
that `torch.export` made, and for callers of `torch.ops.antiphase`.
"""

import torch
from torch import Tensor

from antiphase.ops.arguments import DTYPES, Arguments, statistics_dtype
from antiphase.ops.fused_cpu.eager import transforms_active


def check_transforms() -> None:
    """Raise inside forward-mode AD, whose tangents an operator would lose without a word.

    Raises:
        RuntimeError: Inside `torch.func.jvp` or a dual level.
    """
    if transforms_active():
        raise RuntimeError(
            "fused_attention: does not support forward-mode AD; use backend='reference'"
        )


def check_sizes(args: Arguments) -> None:
    """Raise unless the sizes, dtypes and devices of a call agree.

    Raises:
        ValueError: If they do not; it names the argument.
    """
    q1, k1, q2, k2, v = args.q1, args.k1, args.q2, args.k2, args.v
    if q1.dtype not in DTYPES or q1.dim() != 4:
        raise ValueError(f"fused_attention: q1 is {_describe(q1)}, expected floats [B, H, Tq, d]")
    B, H, Tq, d = q1.shape
    Tk = k1.shape[2] if k1.dim() == 4 else -1
    Hkv = k1.shape[1] if k1.dim() == 4 else -1
    _expect("k1", k1, q1, (B, None, None, d), heads_of=H)
    _expect("v", v, q1, (B, Hkv, Tk, None), heads_of=H)
    if (q2 is None) != (args.lam is None) or (k2 is not None and q2 is None):
        raise ValueError("fused_attention: q2 and lam are given together, k2 only with them")
    if q2 is not None:
        _expect("q2", q2, q1, (B, None, Tq, d if k2 is None else None), heads_of=H)
        if k2 is not None:
            _expect("k2", k2, q1, (B, None, Tk, q2.shape[3]), heads_of=q2.shape[1])
    statistics = statistics_dtype(q1.dtype)
    _expect_exactly("lam", args.lam, (B, H, Tq, 1), statistics)
    _expect_exactly("sink", args.sink, (H,), statistics)
    _expect_exactly("documents", args.documents, (B, Tq, 2), torch.int32)
    _expect_exactly("seed", args.seed, (), torch.int64)
    if args.documents is not None and args.documents.numel():
        low, high = args.documents.aminmax()
        if low < 0 or high > Tk:
            raise ValueError(f"fused_attention: documents reach from key {low} to {high} of {Tk}")
        first, last = args.documents.unbind(-1)
        if (first > last).any() or (args.documents.diff(dim=1) < 0).any():
            raise ValueError("fused_attention: documents do not follow each other")
    mask = args.mask
    if mask is not None and (
        mask.dim() != 4
        or mask.dtype not in (torch.bool, torch.float32, torch.bfloat16, torch.float16, statistics)
        or any(n not in (1, size) for n, size in zip(mask.shape, (B, H, Tq, Tk), strict=True))
    ):
        raise ValueError(
            f"fused_attention: mask is {_describe(mask)}, expected booleans or floats "
            f"{[B, H, Tq, Tk]}, with 1 where it is repeated"
        )
    if 0 in (H, Tq, Tk, d, v.shape[3]):
        raise ValueError("fused_attention: only the batch may be empty")
    if args.window < 0 or args.keep_first < 0 or (args.window and not args.causal):
        raise ValueError("fused_attention: window and keep_first are not negative, windows causal")
    if not 0 <= args.dropout < 1 or (args.dropout > 0) != (args.seed is not None):
        raise ValueError("fused_attention: dropout is a probability below 1 and needs a seed")


def check_gradient_sizes(args: Arguments, dout: Tensor, stats: Tensor) -> None:
    """Raise unless the gradient of the output and the saved statistics fit the call.

    Raises:
        ValueError: If they do not; it names the argument.
    """
    B, H, Tq, _ = args.q1.shape
    maps = 1 if args.q2 is None else 2
    _expect_exactly("dout", dout, (B, H, Tq, args.v.shape[3]), args.v.dtype)
    _expect_exactly("stats", stats, (2 * maps, B, H, Tq), statistics_dtype(args.q1.dtype))


def _expect(
    name: str, t: Tensor, like: Tensor, shape: tuple[int | None, ...], heads_of: int
) -> None:
    fits = t.dim() == 4 and all(n in (None, size) for n, size in zip(shape, t.shape, strict=True))
    heads = fits and t.shape[1] > 0 and heads_of % t.shape[1] == 0
    if not heads or t.dtype != like.dtype or t.device != like.device or 0 in t.shape[1:]:
        sizes = ["any" if size is None else str(size) for size in shape]
        raise ValueError(
            f"fused_attention: {name} is {_describe(t)}, expected {like.dtype} "
            f"[{', '.join(sizes)}], with heads that divide {heads_of}"
        )


def _expect_exactly(
    name: str, t: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    if t is not None and (t.shape != shape or t.dtype != dtype or not t.is_cpu):
        raise ValueError(
            f"fused_attention: {name} is {_describe(t)}, expected {dtype} {list(shape)}"
        )


def _describe(t: Tensor) -> str:
    return f"{t.dtype} {list(t.shape)} on {t.device}"
