"""A causal convolution over a few tokens, channel by channel, with a running state.

    y_t = sum_{j < K} w_j x_{t-j}

over the tokens of t's document, with zeros before its first one. Padding is not a token: the token
before a gap is the one before the token after it. A layer that finds a value by its key needs both
at one position; where they are neighbours, this is what brings them there (arXiv 2312.04927).
"""

import torch
from torch import Tensor

from antiphase.ops.arguments import statistics_dtype, without_autocast


def short_convolution(
    x: Tensor,
    weight: Tensor,
    *,
    keys: Tensor | None = None,
    starts: Tensor | None = None,
    state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute the convolution in fp32 (fp64 for fp64 inputs).

    Args:
        x: Tokens by head [B, H, T, d].
        weight: Of each channel [H, d, K], the present token's first.
        keys: Padding mask [B, T], True for tokens. Padding gives zeros and changes no state.
        starts: Where a document starts [B, T], True. By default, none does: the first token
            continues the document of `state`.
        state: The state of an earlier call [B, H, K - 1, d], or None at the start.

    Returns:
        The output [B, H, T, d], and the state: the last K - 1 tokens of the last document.
    """
    with without_autocast(x.device):
        dtype, (B, H, T, d), K = statistics_dtype(x.dtype), x.shape, weight.shape[-1]
        x, weight = x.to(dtype), weight.to(dtype)
        if state is None:
            state = x.new_zeros(B, H, K - 1, d)
        if keys is None and starts is None:
            x = torch.cat([state.to(dtype), x], dim=2)
            first, *others = _taps(x, weight, T)
            return sum(others, first), x[:, :, T:]
        if keys is None:
            keys = torch.ones(B, T, dtype=torch.bool, device=x.device)
        ids = torch.zeros_like(keys, dtype=torch.long) if starts is None else starts.cumsum(1)
        last = ids[:, -1:]
        order = (~keys).to(torch.uint8).argsort(dim=1, stable=True)  # tokens, then padding
        x = torch.cat([state.to(dtype), _take(x, order)], dim=2)  # [B, H, K - 1 + T, d]
        ids = torch.cat([ids.new_zeros(B, K - 1), ids.gather(1, order)], dim=1)
        taps = _taps(x, weight, T)
        y = taps[0]
        for j in range(1, K):
            same = ids[:, K - 1 - j : K - 1 - j + T] == ids[:, K - 1 :]
            y = y + taps[j] * same[:, None, :, None]
        y = _take(y, order.argsort(dim=1)) * keys[:, None, :, None]
        end = keys.sum(1, keepdim=True) + torch.arange(K - 1, device=x.device)  # [B, K - 1]
        return y, _take(x, end) * (ids.gather(1, end) == last)[:, None, :, None]


def _taps(x: Tensor, weight: Tensor, T: int) -> list[Tensor]:
    """Return w_j x_{t-j} [B, H, T, d] of every j, for the last T tokens of x."""
    K = weight.shape[-1]
    return [weight[:, None, :, j] * x[:, :, K - 1 - j : K - 1 - j + T] for j in range(K)]


def _take(x: Tensor, place: Tensor) -> Tensor:
    """Return the tokens of x [B, H, T, d] at these places [B, n]."""
    return x.gather(2, place[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3]))
