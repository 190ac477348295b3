"""What is active on this machine and why: the answer behind `antiphase doctor`."""

import os

import torch

from antiphase import __version__
from antiphase.cache_folder import cache_folder
from antiphase.cpu import ISA_VARIABLE, cpu_name, guard_bf16
from antiphase.ops.fused_cpu import native
from antiphase.ops.fused_cpu.abi import KERNELS


def findings() -> list[tuple[str, str]]:
    """Return what was found, as (name, text) in the order to read it."""
    capability = torch.backends.cpu.get_cpu_capability()
    found = [
        ("antiphase", f"{__version__}, torch {torch.__version__}"),
        ("processor", f"{cpu_name()}, {capability}, {torch.get_num_threads()} thread(s)"),
        ("compiler ", native.compiler() or "none: install g++ or set CXX"),
        ("cache    ", f"{cache_folder()} (ANTIPHASE_CACHE moves it)"),
    ]
    cap = guard_bf16()
    if cap is not None:
        found.append(
            ("bf16     ", f"oneDNN's AMX code dies on this machine; capped by {ISA_VARIABLE}={cap}")
        )
    elif os.environ.get(ISA_VARIABLE):
        found.append(("bf16     ", f"{ISA_VARIABLE}={os.environ[ISA_VARIABLE]} was set outside"))
    try:
        library = native.library()
    except native.Unavailable as reason:
        return [*found, ("fused_cpu", f"Python level: {reason}")]
    rates = ", ".join(
        f"{name} {rate:.0f}" if rate else f"{name} not here" for name, rate in library.rates.items()
    )
    found.append(("fused_cpu", f"C++ level: {library.path}"))
    found.append(("rates    ", f"{rates} (GFLOP/s of a tile, one thread)"))
    found.append(("bf16 runs", f"on {KERNELS[library.bf16_kernel]}, the fastest of them"))
    return found
