"""What this processor is, and whether PyTorch's own bf16 products survive on it.

Some virtual machines announce matrix tiles (AMX) without the CPUID page that describes them. oneDNN
then runs tile instructions unconfigured and the process dies of an illegal instruction in any bf16
product. `guard_bf16` finds that out in a process of its own and caps oneDNN below tiles.
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

from antiphase.cache_folder import cache_folder

ISA_VARIABLE = "ONEDNN_MAX_CPU_ISA"
ISA_WITHOUT_TILES = "AVX512_CORE_FP16"
FATAL = ("SIGILL", "SIGTRAP", "SIGSEGV", "SIGBUS", "SIGFPE")  # what a processor kills for
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
    """Return the processor's name for people."""
    return cpu_text().splitlines()[0] if cpu_text() else platform.machine()


def cpu_key() -> str:
    """Return a short hash that differs between processors with different features."""
    return hashlib.sha256(cpu_text().encode()).hexdigest()[:12]


@functools.cache
def near_cache_bytes() -> int:
    """Return the size of a core's second-level cache, 1 MiB where the system does not say."""
    try:
        text = Path("/sys/devices/system/cpu/cpu0/cache/index2/size").read_text().strip()
        return int(text.removesuffix("K")) * 1024
    except (OSError, ValueError):
        return 1 << 20


def _probe_bf16() -> str:
    """Run a bf16 product in a process of its own; return "lives", "dies" or "unknown"."""
    command = [sys.executable, "-c", _PROBE]
    try:
        code = subprocess.run(command, capture_output=True, timeout=60, check=False).returncode
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    if code < 0 and signal.Signals(-code).name in FATAL:
        return "dies"
    return "lives" if code == 0 else "unknown"


@functools.cache
def guard_bf16() -> str | None:
    """Cap oneDNN where its bf16 products would kill the process; return the cap, None if unneeded.

    Runs once a process and asks once a machine; call it before the first bf16 product.
    """
    if "amx_bf16" not in cpu_text().split() or os.environ.get(ISA_VARIABLE):
        return None
    note = cache_folder() / f"bf16-{torch.__version__}-{cpu_key()}"
    try:
        verdict = note.read_text()
    except OSError:
        verdict = ""
    if verdict not in ("lives", "dies"):
        verdict = _probe_bf16()
        with contextlib.suppress(OSError):  # then it is asked again next time
            if verdict != "unknown":
                note.parent.mkdir(parents=True, exist_ok=True)
                note.write_text(verdict)
    if verdict != "dies":
        return None
    os.environ[ISA_VARIABLE] = ISA_WITHOUT_TILES
    warnings.warn(
        "this machine announces AMX tiles that oneDNN cannot use (bf16 products die of an illegal "
        f"instruction); antiphase set {ISA_VARIABLE}={ISA_WITHOUT_TILES} for this process",
        RuntimeWarning,
        stacklevel=2,
    )
    return ISA_WITHOUT_TILES
