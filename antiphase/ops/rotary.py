"""Rotary positions: pairs of channels (i, i + w/2) turned by an angle that grows with position."""

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
    half = x.shape[-1] // 2
    cos, sin = cos[:, :, None, :].to(x.dtype), sin[:, :, None, :].to(x.dtype)
    turned = torch.cat([-x[..., half:], x[..., :half]], dim=-1)
    return x * cos + turned * sin
