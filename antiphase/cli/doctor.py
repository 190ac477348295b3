"""`antiphase doctor`: which kernels are active on this machine, and why."""

import os

from antiphase.cli.options import AsJson, Quiet
from antiphase.cli.output import Output


def doctor(quiet: Quiet = False, as_json: AsJson = False) -> None:
    """Show which kernels are active on this machine, and why."""
    output = Output(quiet=quiet, as_json=as_json)
    found = findings()
    output.fields(found)
    output.json(found)


def findings() -> dict[str, str]:
    """Return what was found, by name, in the order to read it."""
    import torch

    from antiphase import __version__
    from antiphase.cache_folder import cache_folder
    from antiphase.cpu import ISA_VARIABLE, cpu_name, guard_bf16
    from antiphase.ops.fused_cpu import native
    from antiphase.ops.fused_cpu.abi import KERNELS

    capability = torch.backends.cpu.get_cpu_capability()
    found = {
        "antiphase": f"{__version__}, torch {torch.__version__}",
        "processor": f"{cpu_name()}, {capability}, {torch.get_num_threads()} thread(s)",
        "compiler": native.compiler() or "none: install g++ or set CXX to build kernels",
        "cache": f"{cache_folder()} (ANTIPHASE_CACHE changes it)",
    }
    cap = guard_bf16()
    if cap is not None:
        found["bf16"] = f"oneDNN's AMX code crashes on this machine; {ISA_VARIABLE}={cap} caps it"
    elif os.environ.get(ISA_VARIABLE):
        found["bf16"] = f"{ISA_VARIABLE}={os.environ[ISA_VARIABLE]} is set in the environment"
    try:
        library = native.library()
    except native.Unavailable as reason:
        return found | {"fused_cpu": f"Python level: {reason}"} | gpu_findings()
    rates = ", ".join(
        f"{name} {rate:.0f}" if rate else f"{name} unavailable"
        for name, rate in library.rates.items()
    )
    return found | {
        "fused_cpu": f"C++ level, {library.origin}: {library.path}",
        "rates": f"{rates} (GFLOP/s of a tile, one thread)",
        "bf16 runs": f"on {KERNELS[library.bf16_kernel]} ({native.PIN} changes it)",
        **gpu_findings(),
    }


def gpu_findings() -> dict[str, str]:
    """Return what there is for GPUs: Triton, the kernels, and how they did on each device."""
    import importlib.metadata

    import torch

    from antiphase.ops.triton import coverage, self_check

    if not coverage.INSTALLED:
        return {"triton": "not installed; on a machine with a GPU: pip install 'antiphase[gpu]'"}
    found = {
        "triton": f"{importlib.metadata.version('triton')}; kernels interpreted, and compiled for "
        "sm_80, sm_90, sm_100 and gfx942; no GPU had run them when they were published",
    }
    if not torch.cuda.is_available():
        return found | {"gpu": "none here"}
    for i in range(torch.cuda.device_count()):
        results = []
        for dtype in coverage.DTYPES:
            reason = self_check.failure(torch.device("cuda", i), dtype)
            name = str(dtype).removeprefix("torch.")
            results.append(f"{name} {'works' if reason is None else f'fails ({reason})'}")
        found[f"gpu {i}"] = f"{torch.cuda.get_device_name(i)}: {', '.join(results)}"
    return found
