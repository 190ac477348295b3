"""Which calls the Triton kernels run, and the reason where they do not.

A boolean mask over the keys alone, [B or 1, 1, 1, Tk], is key padding. Causality, windows and
packed documents are intervals of keys. Other masks, dropout and soft-caps run elsewhere.
"""

import importlib.util
import os

import torch
from torch import Tensor

from antiphase.ops.arguments import Arguments

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
MOST_D, MOST_DV = 128, 256
MOST_PROGRAMS = 65535  # along the second axis of CUDA's grid: heads times batch size
LEAST_CAPABILITY = (8, 0)
INSTALLED = importlib.util.find_spec("triton") is not None  # imports nothing


def uncovered(args: Arguments) -> str | None:
    """Say why the kernels have no code for these arguments; None if they have."""
    if (reason := _unfit_device(args.q1.device)) is not None:
        return reason
    if args.q1.dtype not in DTYPES:
        return f"{args.q1.dtype} is not supported"
    widths = {"d": args.q1.shape[3], "d2": 1 if args.q2 is None else args.q2.shape[3]}
    for name, width in widths.items():
        if width > MOST_D:
            return f"heads are wider than {MOST_D} channels ({name} = {width})"
    if args.v.shape[3] > MOST_DV:
        return f"values are wider than {MOST_DV} channels (dv = {args.v.shape[3]})"
    if args.q1.shape[0] * args.q1.shape[1] > MOST_PROGRAMS:
        return f"there are more than {MOST_PROGRAMS} heads in the batch"
    if args.dropout:
        return "dropout is not supported"
    if args.softcap:
        return "a soft-cap is not supported"
    if args.sink is not None and args.q2 is not None:
        return "a sink with two maps is not supported"
    if args.mask is not None and not _is_key_padding(args.mask):
        return "a mask that is not boolean over the keys alone, [B, 1, 1, Tk], is not supported"
    return None


def why_not(args: Arguments) -> str | None:
    """Say why `auto` does not use the kernels here: uncovered, or wrong on this device."""
    if (reason := uncovered(args)) is not None:
        return reason
    if args.q1.dtype == torch.float32 and torch.version.hip is None:
        return "its products of fp32 spill registers on NVIDIA GPUs"
    if torch.compiler.is_compiling() or args.q1.device.type != "cuda":
        return None  # the operator checks the device when it runs
    from antiphase.ops.triton.self_check import failure

    return failure(args.q1.device, args.q1.dtype)


def tokens(args: Arguments) -> Tensor | None:
    """Return the mask of a covered call as [B or 1, Tk], True for tokens."""
    if args.mask is None:
        return None
    return args.mask[:, 0, 0].expand(-1, args.k1.shape[2])


def interpreted() -> bool:
    """Tell whether Triton's interpreter runs the kernels, on CPU tensors."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def _is_key_padding(mask: Tensor) -> bool:
    return mask.dtype == torch.bool and mask.shape[1:3] == (1, 1)


def _unfit_device(device: torch.device) -> str | None:
    if not INSTALLED:
        return "triton is not installed (pip install 'antiphase[gpu]')"
    if device.type == "cpu":
        return None if interpreted() else "tensors are on the CPU (and TRITON_INTERPRET is not 1)"
    if device.type != "cuda":
        return f"tensors are on {device.type}, not on CUDA or ROCm"
    if interpreted():
        return "TRITON_INTERPRET=1 is for CPU tensors"
    if torch.version.hip is None and not torch.compiler.is_compiling():  # the operator checks again
        capability = torch.cuda.get_device_capability(device)
        if capability < LEAST_CAPABILITY:
            return f"the GPU has compute capability {capability}, the kernels need 8.0"
    return None
