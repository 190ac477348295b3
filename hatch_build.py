"""Prebuild the CPU kernels into a wheel for x86-64 Linux; `make wheels` switches this hook on.

The wheel gets one library per instruction set. They need nothing of the machine that builds them,
and of PyTorch only the symbols in `ALLOWED`, so that one wheel serves all supported versions: the
build fails if another symbol slips in. The platform tag is that of the oldest glibc that has all
symbols used.
"""

import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

CAPABILITIES = ("AVX2", "AVX512")  # as PyTorch names them
FOLDER = "antiphase/ops/fused_cpu/prebuilt"
# What PyTorch and the OpenMP runtime that it loads provide, in every supported version.
ALLOWED = re.compile(
    r"at::get_num_threads\(\)|at::native::cpublas::brgemm(_release)?\(.*\)"
    r"|c10::detail::torchCheckFail\(.*\)|Sleef_tanhf(8|16)_u10"
    r"|GOMP_parallel|omp_get_thread_num"
    r"|cblas_gemm_bf16bf16f32"  # weak: may be missing
    r"|std::.*|__cxa_.*|_ITM_.*|__gmon_start__"
)


class PrebuiltKernels(BuildHookInterface):
    """Compile the kernels, and add them to the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
            raise RuntimeError("kernels are prebuilt on x86-64 Linux only")
        sys.path.insert(0, self.root)
        from antiphase.ops.fused_cpu import native

        cxx = native.compiler()
        if cxx is None:
            raise RuntimeError("no C++ compiler was found: install g++ or set CXX")
        self.scratch = tempfile.TemporaryDirectory()
        glibc = 17  # minor version; no platform tag has an older one
        for capability in CAPABILITIES:
            path = Path(self.scratch.name, native.library_name(capability))
            self.app.display_info(f"compiling {path.name}")
            command = native.command(cxx, path, capability, portable=True)
            subprocess.run(command, check=True)
            glibc = max(glibc, required_glibc(path))
            build_data["force_include"][str(path)] = f"{FOLDER}/{path.name}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-manylinux_2_{glibc}_x86_64"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        self.scratch.cleanup()


def required_glibc(path: Path) -> int:
    """Return the minor version of the glibc 2 that a library needs.

    Raises:
        RuntimeError: If the library needs a symbol that not every supported PyTorch may have.
    """
    table = subprocess.run(
        ["nm", "-DC", "--undefined-only", str(path)], check=True, capture_output=True, text=True
    ).stdout
    symbols = [line.split(maxsplit=1)[1] for line in table.splitlines()]
    foreign = [name for name in symbols if "@" not in name and not ALLOWED.fullmatch(name)]
    if foreign:
        raise RuntimeError(f"{path.name} needs symbols that PyTorch may not have: {foreign}")
    return max(int(minor) for minor in re.findall(r"@GLIBC_2\.(\d+)", table))
