"""The first use of the kernels on a device: outputs and gradients against `sdpa`.

No GPU was there when the kernels were written. So each device and dtype is checked once, and the
result is kept in the cache folder. Where the kernels are wrong or do not compile, one warning says
so and `sdpa` computes.
"""

import contextlib
import functools
import hashlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from antiphase.cache_folder import cache_folder, create_private, distrust, write_private
from antiphase.cpu import warn
from antiphase.ops import sdpa
from antiphase.ops.arguments import Arguments, validate

TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
_WORKS, _FAILS = "works", "fails: "


@functools.cache
def failure(device: torch.device, dtype: torch.dtype) -> str | None:
    """Say why the kernels must not be used on a device, with one warning; None if they may.

    Args:
        device: A CUDA or ROCm device.
        dtype: Of the tensors.
    """
    result = _stored(device, dtype)
    if result == _WORKS:
        return None
    reason = result.removeprefix(_FAILS)
    name = torch.cuda.get_device_name(device)
    warn(
        f"antiphase does not use its Triton kernels in {dtype} on {name}, but sdpa: {reason}. "
        "Please report it, with `antiphase doctor`"
    )
    return reason


def check(device: torch.device, dtype: torch.dtype) -> str | None:
    """Compare small calls with `sdpa`; return what is wrong, None if nothing is.

    Args:
        device: Where the kernels run.
        dtype: Of the tensors.
    """
    from antiphase.ops.triton.kernels import launch
    from antiphase.ops.triton.kernels.tuning import without_measuring
    from antiphase.ops.triton.operator import as_call

    with torch.no_grad(), without_measuring():
        for name, args in _cases(device, dtype):
            expected_args, leaves = _in_fp32(args)
            with torch.enable_grad():
                expected = sdpa.forward(expected_args)
            call = as_call(args)
            if name.startswith("decode"):
                found = [launch.forward(call, save=False)[0]]
                wanted = [expected]
            else:
                dout = torch.randn_like(expected).to(dtype)
                out, noise, stats = launch.forward(call, save=True)
                grads = launch.backward(call, dout, out, noise, stats)
                found = [out, *(g for g in grads if g is not None)]
                wanted = [expected, *torch.autograd.grad(expected, leaves, dout.float())]
            for a, b in zip(found, wanted, strict=True):
                error = float((a.float() - b).abs().amax() / b.abs().amax().clamp_min(0.1))
                if not error < TOLERANCE[dtype]:
                    return f"{name}: relative error {error:.1e}, allowed is {TOLERANCE[dtype]:.0e}"
    return None


def _cases(device: torch.device, dtype: torch.dtype) -> Iterator[tuple[str, Arguments]]:
    """Draw the calls: both forms of the forward kernel, masks, one map with a sink, decoding."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(device, dtype)

    def two_maps(Tq: int, Tk: int, d: int, dv: int, **options: Any) -> Arguments:
        q1, q2 = draw(1, 2, Tq, d), draw(1, 2, Tq, d)
        k1, k2, v = draw(1, 1, Tk, d), draw(1, 1, Tk, d), draw(1, 1, Tk, dv)
        lam = torch.rand(1, 2, Tq, 1, generator=generator).to(device)
        mask = options.pop("mask", None)
        return validate(q1, k1, q2, k2, v, lam, None, mask, True, None, None, **options)

    def tokens(n: int) -> Tensor:
        return (torch.arange(n, device=device) >= 5)[None, None, None]

    yield "two maps", two_maps(150, 150, 64, 128)
    restricted = {"documents": torch.arange(100, device=device) // 60, "mask": tokens(100)}
    yield "two wide maps", two_maps(40, 100, 128, 256, window=40, keep_first=3, **restricted)
    yield "decode", two_maps(1, 150, 64, 128, mask=tokens(150))
    q, k, v = draw(1, 2, 100, 64), draw(1, 1, 100, 64), draw(1, 1, 100, 64)
    sink = torch.randn(2, generator=generator).to(device)
    yield "one map", validate(q, k, None, None, v, None, sink, None, True, None, None)


def _in_fp32(args: Arguments) -> tuple[Arguments, list[Tensor]]:
    """Return the same arguments in fp32, as leaves that require gradients, and these leaves."""
    names = ("q1", "k1", "q2", "k2", "v", "lam", "sink")
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    leaves = {name: t.detach().float().requires_grad_() for name, t in given.items()}
    return replace(args, **leaves), list(leaves.values())


def _stored(device: torch.device, dtype: torch.dtype) -> str:
    """Return the result of the check that the cache holds; run it if there is none."""
    stored = None
    with contextlib.suppress(OSError):
        path = cache_folder() / _name(device, dtype)
        if distrust(path.parent) is None and distrust(path) is None:
            stored = path
            if path.is_file():
                result = path.read_text(errors="replace")
                if result == _WORKS or result.startswith(_FAILS):
                    return result
    try:
        reason = check(device, dtype)
    except Exception as error:  # a compiler's error has any type
        reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    result = _WORKS if reason is None else f"{_FAILS}{reason}"
    if stored is not None:
        with contextlib.suppress(OSError):  # then it is checked again next time
            create_private(stored.parent)
            write_private(stored, result)
    return result


def _name(device: torch.device, dtype: torch.dtype) -> str:
    """Return the name of the stored result: another device, version or source is another file."""
    import triton

    from antiphase.ops.triton.kernels.tuning import source_digest

    about = (torch.cuda.get_device_name(device), torch.__version__, triton.__version__)
    key = hashlib.sha256(repr((*about, source_digest())).encode()).hexdigest()[:16]
    return f"triton-{key}-{str(dtype).removeprefix('torch.')}"
