"""Print the peak memory of forward and backward: `python -m tests.ops.peak_memory LEVEL TOKENS`.

In a process of its own: where others have left a fragmented heap, or told the allocator to keep
freed memory, the resident memory of a process says little about one call.
"""

import contextlib
import sys

import torch

from antiphase import diff_attention
from antiphase.benchmarks.timing import peak_extra_bytes
from antiphase.ops import fused_cpu
from tests.ops.cases import Case


def main(level: str, tokens: int) -> None:
    """Print the bytes by which the resident memory rises, or None where it is not reported."""
    level_context = fused_cpu.python_level if level == "python" else contextlib.nullcontext

    def call(T: int) -> None:
        case = Case(H=1, Hkv=1, Tq=T, d=16, dv=16)
        inputs = [t.requires_grad_() for t in case.inputs(torch.float32)]
        with level_context():
            diff_attention(*inputs, causal=True, backend="fused_cpu").sum().backward()

    call(256)  # libraries and thread pools allocate their memory once
    print(peak_extra_bytes(lambda: call(tokens)))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
