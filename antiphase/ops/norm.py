"""RMS norm with few passes over memory, for CPUs, where PyTorch has no fused one."""

from typing import Any

import torch
from torch import Tensor

from antiphase.ops.fused_cpu.eager import needs_plain_operators


def rms_norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """Compute x / rms(x) * gain over the last dimension.

    Args:
        x: Input [..., w].
        gain: Gain [w]. The norm is computed in its dtype or that of `x`, whichever is wider.
        eps: Added to the mean square.

    Returns:
        The normalised input [..., w], in the dtype of `x`.
    """
    if needs_plain_operators():
        wide = x.to(torch.promote_types(x.dtype, gain.dtype))
        inverse = (wide.square().mean(-1, keepdim=True) + eps).rsqrt()
        return (wide * inverse * gain).to(x.dtype)
    if not torch.is_grad_enabled():  # `apply` takes longer than the norm of one token
        return _RMSNorm.forward(x, gain, eps)
    return _RMSNorm.apply(x, gain, eps)  # type: ignore[no-untyped-call]


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, gain: Tensor, eps: float) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, gain.dtype))
        return (wide * _inverse_rms(wide, eps)).mul_(gain).to(x.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: Tensor) -> None:
        x, gain, ctx.eps = inputs
        ctx.save_for_backward(x, gain)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, None]:
        x, gain = ctx.saved_tensors
        wide = x.to(torch.promote_types(x.dtype, gain.dtype))
        inverse = _inverse_rms(wide, ctx.eps)
        normed = wide * inverse
        dy = dy.to(wide.dtype)
        product = dy * normed
        dgain = product.flatten(0, -2).sum(0)
        mean = (product @ (gain / gain.shape[0]).unsqueeze(-1)).mul_(inverse)  # [..., 1]
        dx = (dy * gain).mul_(inverse).addcmul_(normed, mean, value=-1)
        return dx.to(x.dtype), dgain.to(gain.dtype), None


def _inverse_rms(x: Tensor, eps: float) -> Tensor:
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return (norm.square() / x.shape[-1] + eps).rsqrt()
