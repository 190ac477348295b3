"""Self-test of a built library: time the micro-kernels, compare the kernels with the formula.

`native.py` runs `main` in a separate process, because a kernel that this processor cannot execute
kills its process.
"""

import ctypes
import json
import sys
from pathlib import Path

import torch
from torch import Tensor

from antiphase.ops.arguments import Arguments
from antiphase.ops.fused_cpu.abi import KERNELS, Library, backward, forward, linear, tile_rate
from antiphase.ops.fused_cpu.native import Unavailable, open_library

_ROUNDS = 8


def run(path: Path) -> dict[str, float]:
    """Return the rate of each micro-kernel in GFLOP/s; 0 if it is missing or gives wrong results.

    Raises:
        Unavailable: If no micro-kernel is usable.
    """
    handle = open_library(path)
    rates = measure_rates(handle)
    if not rates[KERNELS[0]]:
        raise Unavailable("this PyTorch has no fp32 micro-kernel (brgemm) on this processor")
    if not _is_correct(Library(path, handle, rates), torch.float32, 1e-4):
        raise Unavailable("the kernels give wrong results on this processor")
    for i, name in enumerate(KERNELS):
        if rates[name] and not _is_correct(Library(path, handle, rates, i), torch.bfloat16, 5e-2):
            rates[name] = 0.0
    if not any(rates.values()):
        raise Unavailable("no micro-kernel gives correct results in bf16 on this processor")
    return rates


def measure_rates(handle: ctypes.CDLL) -> dict[str, float]:
    """Return the rate of each micro-kernel in GFLOP/s, 0 where it is not available.

    The micro-kernels take turns over several rounds, and the best round of each counts: another
    process that takes the processor for a while slows all of them, not the one that is measured.
    """
    rounds = [[tile_rate(handle, i) for i in range(len(KERNELS))] for _ in range(_ROUNDS)]
    return {
        name: max(rates) for name, rates in zip(KERNELS, zip(*rounds, strict=True), strict=True)
    }


def _is_correct(library: Library, dtype: torch.dtype, tolerance: float) -> bool:
    """Tell whether small calls (linear, prefill, decode, backward) agree with the formula."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    def close(result: Tensor | None, expected: Tensor) -> bool:
        atol = tolerance * float(expected.abs().max())
        return result is not None and torch.allclose(result.float(), expected, atol=atol)

    x, weight, bias = (draw(*shape).to(dtype) for shape in ((3, 70), (21, 70), (21,)))
    product = torch.nn.functional.linear(x.float(), weight.float(), bias.float())
    if not close(linear(library, x, weight, bias), product):
        return False
    for rows in (1, 70):  # decode, prefill
        q1, q2 = draw(1, 2, rows, 16), draw(1, 2, rows, 16)
        k1, k2, v = draw(1, 1, 330, 16), draw(1, 1, 330, 16), draw(1, 1, 330, 24)
        lam, dout = draw(1, 2, rows, 1), draw(1, 2, rows, 24).to(dtype)
        leaves = [t.to(dtype).float().requires_grad_() for t in (q1, k1, q2, k2, v)]
        q1, k1, q2, k2, v = leaves
        A1, A2 = torch.softmax(q1 @ k1.mT / 4, -1), torch.softmax(q2 @ k2.mT / 4, -1)
        expected = (A1 - lam * A2) @ v
        expected_grads = torch.autograd.grad(expected, leaves, dout.float())
        q1, k1, q2, k2, v = (t.detach().to(dtype) for t in leaves)
        args = Arguments(q1, k1, q2, k2, v, lam, None, None, False, 0.25, 0.25)
        out, stats = forward(library, args)
        grads = backward(library, args, dout, stats)
        pairs = zip((out, *grads[:5]), (expected.detach(), *expected_grads), strict=True)
        if not all(close(result, formula) for result, formula in pairs):
            return False
    return True


def main() -> None:
    """Print the rates of the library that the command line names, or why it cannot be used."""
    try:
        result: dict[str, object] = {"rates": run(Path(sys.argv[1]))}
    except Unavailable as reason:
        result = {"failure": str(reason)}
    print(json.dumps(result))
