"""How layers call their projections, and how tensor parallelism splits them."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from antiphase.ops import linear


def apply_linear(layer: nn.Module, x: Tensor) -> Tensor:
    """Return `layer(x)`, in decoding on a CPU by `ops.linear`, which reads weights faster.

    The layers stay `nn.Linear`, which adapters and quantisation replace. What replaced or hooks one
    is called as it is.

    Args:
        layer: a projection of a mechanism or of a model.
        x: [..., K].
    """
    if torch.is_grad_enabled() or type(layer) is not nn.Linear or _is_observed(layer):
        called: Any = layer(x)
        return called
    return linear(x, layer.weight, layer.bias)


def by_heads(*more: str, shared: tuple[str, ...] = ()) -> dict[str, str]:
    """Return the plan of tensor parallelism of a layer that is split by heads.

    Every device holds complete heads, with their queries, keys and values.

    Args:
        *more: projections to channels of heads, beside those of queries, keys and values.
        shared: parts whose parameters all heads share: complete on every device, where a gradient
            comes from its own heads only, so that gradients are added up.

    Returns:
        transformers' style of each part, by its name in the layer.
    """
    return {
        **dict.fromkeys(("q_proj", "k_proj", "v_proj", *more), "colwise"),
        "o_proj": "rowwise",
        **dict.fromkeys(shared, "replicated_with_grad_allreduce"),
    }


def matrix_of(layer: nn.Module, like: Tensor) -> Tensor:
    """Return the matrix W [N, K] of a projection x W^T without bias, in the dtype of `like`.

    What replaced an `nn.Linear`, such as an adapter, is called with the identity.

    Args:
        layer: a projection.
        like: a tensor with K channels, for the dtype and device of the result.
    """
    if type(layer) is nn.Linear:
        return layer.weight.to(like.dtype)
    identity = torch.eye(layer.in_features, dtype=like.dtype, device=like.device)  # type: ignore[call-overload]
    called: Tensor = layer(identity)
    return called.mT


def _is_observed(layer: nn.Module) -> bool:
    """Tell whether something has to see the call of this layer."""
    return bool(
        layer._forward_hooks
        or layer._forward_pre_hooks
        or "forward" in layer.__dict__
        or _has_any_global_hook()
    )
