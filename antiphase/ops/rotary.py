"""Rotary positions: pairs of channels (i, i + w/2) turned by an angle that grows with position."""

from typing import Any

import torch
from torch import Tensor


def rotary_table(
    length: int, width: int, theta: float = 10000.0, *, device: torch.device | None = None
) -> tuple[Tensor, Tensor]:
    """Return cos and sin [1, T, w] of positions 0..T-1, for `rotate`."""
    frequencies = theta ** (-torch.arange(0, width, 2, device=device, dtype=torch.float32) / width)
    angles = torch.arange(length, device=device, dtype=torch.float32)[:, None] * frequencies
    angles = torch.cat([angles, angles], dim=-1)[None]
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn x [B, T, heads, w] by the angles of cos, sin [B | 1, T, w]."""
    cos, sin = cos[:, :, None, :].to(x.dtype), sin[:, :, None, :].to(x.dtype)
    return _Rotate.apply(x, cos, sin)  # type: ignore[no-untyped-call]


class _Rotate(torch.autograd.Function):
    """The gradient of a turn is the turn back; autograd would take five passes each way."""

    @staticmethod
    def forward(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        out = x * cos
        out[..., :half].addcmul_(x[..., half:], sin[..., :half], value=-1)
        out[..., half:].addcmul_(x[..., :half], sin[..., half:])
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _Rotate.apply(dy, cos, -sin), None, None  # type: ignore[no-untyped-call]
