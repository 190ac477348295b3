"""Rotary position embedding (RoPE): rotates channel pairs (i, i + w/2) by position times frequency.

This is the rotate-half layout of Hugging Face models.
"""

from typing import Any

import torch
from torch import Tensor

from antiphase.ops.fused_cpu.eager import needs_plain_operators


def rotary_table(
    length: int, width: int, theta: float = 10000.0, *, device: torch.device | None = None
) -> tuple[Tensor, Tensor]:
    """Compute the cos and sin tables of positions 0..T-1, for `rotate`.

    Args:
        length: Number of positions T.
        width: Number of channels w that are rotated, even.
        theta: Base of the frequencies.
        device: Device of the tables.

    Returns:
        cos and sin, each [1, T, w], in fp32.
    """
    frequencies = theta ** (-torch.arange(0, width, 2, device=device, dtype=torch.float32) / width)
    angles = torch.arange(length, device=device, dtype=torch.float32)[:, None] * frequencies
    angles = torch.cat([angles, angles], dim=-1)[None]
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply RoPE.

    Args:
        x: Queries or keys [B, T, heads, w].
        cos: Cosines of the angles [B | 1, T, w].
        sin: Sines of the angles [B | 1, T, w].

    Returns:
        The rotated tensor [B, T, heads, w], in the dtype of `x`.
    """
    cos, sin = cos.unsqueeze(2).to(x.dtype), sin.unsqueeze(2).to(x.dtype)
    if needs_plain_operators():
        x1, x2 = x.chunk(2, dim=-1)
        return x * cos + torch.cat([-x2, x1], dim=-1) * sin
    if not torch.is_grad_enabled():  # `apply` takes longer than the rotation of one token
        return _Rotate.forward(x, cos, sin)
    return _Rotate.apply(x, cos, sin)  # type: ignore[no-untyped-call]


class _Rotate(torch.autograd.Function):
    """The gradient of a rotation is the inverse rotation; autograd would need five passes each."""

    @staticmethod
    def forward(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        if x.is_cpu and x.element_size() < 4 and len(x) > len(cos):
            return _rotate_whole_rows(x, cos, sin)
        out = x * cos
        (x1, x2), (sin1, sin2), (out1, out2) = (t.chunk(2, dim=-1) for t in (x, sin, out))
        out1.addcmul_(x2, sin1, value=-1)
        out2.addcmul_(x1, sin2)
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _Rotate.apply(dy, cos, -sin), None, None  # type: ignore[no-untyped-call]


def _rotate_whole_rows(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate a batch with tables as wide as all its heads, [1, T, heads, w].

    PyTorch vectorises 16-bit operations on long contiguous runs only, and half a head is none:
    with narrow heads this takes a quarter of the time.
    """
    (x1, x2), (sin1, sin2) = x.chunk(2, dim=-1), sin.chunk(2, dim=-1)
    swapped = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    for half, other in zip(swapped.chunk(2, dim=-1), (x2, x1), strict=True):
        half.copy_(other)
    cos, sin = (
        table.expand(-1, -1, x.shape[2], -1).contiguous()
        for table in (cos, torch.cat([-sin1, sin2], dim=-1))
    )
    return (x * cos).addcmul_(swapped, sin)
