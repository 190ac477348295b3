"""The processor: its name, its cache, and whether PyTorch's bf16 matrix products work on it.

Some virtual machines announce AMX tiles without the CPUID page that describes them. oneDNN then
runs tile instructions unconfigured, and any bf16 product kills the process with an illegal
instruction. `guard_bf16` tests for this in a separate process and caps oneDNN below AMX.
"""

import contextlib
import functools
import hashlib
import os
import platform
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import torch

from antiphase.cache_folder import cache_folder, create_private, distrust, write_private
from antiphase.isolated_process import run_isolated

ISA_VARIABLE = "ONEDNN_MAX_CPU_ISA"
ISA_WITHOUT_TILES = "AVX512_CORE_FP16"
FATAL = ("SIGILL", "SIGTRAP", "SIGSEGV", "SIGBUS", "SIGFPE")  # signals of a failing instruction
_PROBE = "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); (a @ a).sum().item()"


@functools.cache
def cpu_text() -> str:
    """Return the processor's name and feature flags, one line each."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return f"{platform.machine()}\n{platform.processor()}"
    wanted = ("model name", "flags", "Features", "CPU implementer", "CPU part")
    return "\n".join(line.split(":", 1)[-1].strip() for line in lines if line.startswith(wanted))


def cpu_name() -> str:
    """Return the processor's name, to print."""
    return cpu_text().splitlines()[0] if cpu_text() else platform.machine()


def cpu_key() -> str:
    """Return a short hash that differs between processors with different features."""
    return hashlib.sha256(cpu_text().encode()).hexdigest()[:12]


@functools.cache
def l2_cache_bytes() -> int:
    """Return the size of the L2 cache per core, 1 MiB where the system does not report it."""
    try:
        text = Path("/sys/devices/system/cpu/cpu0/cache/index2/size").read_text().strip()
        return int(text.removesuffix("K")) * 1024
    except (OSError, ValueError):
        return 1 << 20


@functools.cache
def guard_bf16() -> str | None:
    """Cap oneDNN on machines where its bf16 products kill the process.

    Runs once per process, tests once per machine. Call it before the first bf16 product.

    Returns:
        The cap, or None if none is needed.
    """
    if "amx_bf16" not in cpu_text().split() or os.environ.get(ISA_VARIABLE):
        return None
    result = _stored_probe()
    if result != "crashes":
        return None
    os.environ[ISA_VARIABLE] = ISA_WITHOUT_TILES
    warn(
        "this machine announces AMX tiles that oneDNN cannot use (bf16 products die of an illegal "
        f"instruction); antiphase set {ISA_VARIABLE}={ISA_WITHOUT_TILES} for this process"
    )
    return ISA_WITHOUT_TILES


def warn(message: str) -> None:
    """Warn of something that the call survives, also where `-W error` turns warnings into errors.

    There the message is printed instead.
    """
    try:
        warnings.warn(message, RuntimeWarning, stacklevel=3)
    except RuntimeWarning:
        print(f"antiphase: {message}", file=sys.stderr)


def _stored_probe() -> str:
    """Return the result of `_probe_bf16` that the cache holds; run it if there is none."""
    try:
        stored = cache_folder() / f"bf16-{torch.__version__}-{cpu_key()}"
        private = distrust(stored.parent) is None
        if private and distrust(stored) is None and stored.is_file():
            result = stored.read_text(errors="replace")
            if result in ("works", "crashes"):
                return result
    except OSError:
        private = False
    result = _probe_bf16()
    if private and result != "unknown":
        with contextlib.suppress(OSError):  # then it is tested again next time
            create_private(stored.parent)
            write_private(stored, result)
    return result


def _probe_bf16() -> str:
    """Run a bf16 product in a separate process; return "works", "crashes" or "unknown"."""
    try:
        code = run_isolated(_PROBE, timeout=60).returncode
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    if code < 0 and signal.Signals(-code).name in FATAL:
        return "crashes"
    return "works" if code == 0 else "unknown"
