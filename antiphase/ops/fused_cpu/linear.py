"""The product of few rows with a weight matrix, as in decoding.

It takes the time of reading the matrix from memory, which a BLAS does on some processors at less
than half the speed that the memory has (docs/log.md).
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Parameter

from antiphase.ops.fused_cpu import abi, native
from antiphase.ops.fused_cpu.eager import is_eager, is_exporting
from antiphase.ops.fused_cpu.level import requested_python, unavailable

MAX_ROWS = 4
_PLAIN = (Tensor, Parameter)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute x W^T + bias, with few rows and without gradients by a kernel of this package.

    Args:
        x: Input [..., K].
        weight: W [M, K].
        bias: None or [M].

    Returns:
        [..., M], in the dtype of `x`.
    """
    # Training and prefill leave by the first line.
    if (
        torch.is_grad_enabled()
        or x.numel() > MAX_ROWS * weight.shape[-1]
        or not _suits(x, weight, bias)
    ):
        return F.linear(x, weight, bias)
    if torch.compiler.is_compiling():
        compiled: Tensor = torch.ops.antiphase.linear(x, weight, bias)
        return compiled
    if not is_eager(x, weight) or requested_python():
        return F.linear(x, weight, bias)
    return _run(x, weight, bias)


def _suits(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Tell whether the kernel takes these tensors, and nothing has to see a standard operator."""
    return (
        type(x) in _PLAIN
        and type(weight) in _PLAIN  # not quantised, not sharded
        and x.is_cpu
        and x.dtype == weight.dtype
        and x.dtype in abi.DTYPES
        and (bias is None or bias.dtype == x.dtype)
        and weight.dim() == 2
        and x.shape[-1] == weight.shape[1]
        and x.numel() > 0
        and weight.is_contiguous()
        and not torch.is_autocast_enabled("cpu")
        and not is_exporting()
    )


def _run(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if unavailable() is not None:
        return F.linear(x, weight, bias)
    return abi.linear(native.library(), x, weight, bias)


# Registered below `torch.library.custom_op`, whose calls take longer than reading a small matrix.
_operators = torch.library.Library("antiphase", "FRAGMENT")
_operators.define("linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor")
_operators.impl("linear", _run, "CPU")


@torch.library.register_fake("antiphase::linear")  # type: ignore[untyped-decorator]
def _(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))
