"""How a call is executed: at once, recorded by an exporter, or inside a functional transform.

An eager call may skip PyTorch's dispatcher, which costs more than the attention of a query.
"""

import torch
import torch.autograd.forward_ad
from torch import Tensor
from torch.nn import Parameter


def is_eager(*tensors: object) -> bool:
    """Tell whether these are plain tensors, and nothing traces, counts or transforms the call."""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() or is_tracing():
        return False
    return all(map(_is_plain, tensors)) and not transforms_active()


def _is_plain(t: object) -> bool:
    """Tell whether a tensor's memory holds its values, which are not negated lazily (`is_neg`)."""
    return (type(t) is Tensor or type(t) is Parameter) and not t.is_nested and not t.is_neg()


def transforms_active() -> bool:
    """Tell whether forward-mode AD or a `torch.func` transform is on, which need plain autograd."""
    dual_level: int = torch.autograd.forward_ad._current_level
    return dual_level >= 0 or torch._C._functorch.maybe_current_level() is not None


def is_exporting() -> bool:
    """Tell whether `torch.export` (hence ONNX, ExecuTorch, AOTInductor) or `torch.jit` records.

    The program has to run where this package is not: it gets PyTorch's own operators.
    """
    return torch.compiler.is_exporting() or is_tracing()


def is_tracing() -> bool:
    """Tell whether `torch.jit.trace` records."""
    return bool(torch.jit.is_tracing())  # type: ignore[attr-defined, no-untyped-call]


def needs_plain_operators() -> bool:
    """Tell whether custom autograd functions and operators cannot be part of this call."""
    return is_exporting() or transforms_active()
