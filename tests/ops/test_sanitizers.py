"""The C++ level under the address and undefined-behaviour sanitizers, over random calls."""

import os
import subprocess
import sys

import pytest

from antiphase.ops.fused_cpu import native

FLAGS = "-fsanitize=address,undefined -fno-sanitize-recover=all -O1 -g"


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory) -> dict[str, str]:
    """Return an environment whose kernels are built with sanitizers, or skip."""
    cxx = native.compiler()
    if cxx is None:
        pytest.skip("NO C++ COMPILER: install g++ to test the C++ level")
    folder = tmp_path_factory.mktemp("sanitizers")
    (folder / "empty.cpp").write_text("int main() { return 0; }")
    trial = [cxx, *FLAGS.split(), "empty.cpp", "-o", "empty"]
    if subprocess.run(trial, cwd=folder, capture_output=True, check=False).returncode:
        pytest.skip(f"NO SANITIZERS: {cxx} cannot link with {FLAGS.split()[0]}")
    # The runtime must be loaded before Python, which was not built with it; the compiler was not,
    # either, and runs without.
    runtimes = [
        subprocess.check_output([cxx, f"-print-file-name={name}.so"], text=True).strip()
        for name in ("libasan", "libubsan")
    ]
    compiler = folder / "compiler"
    compiler.write_text(f'#!/bin/sh\nunset LD_PRELOAD\nexec "{cxx}" "$@" {FLAGS}\n')
    compiler.chmod(0o755)
    return {
        **os.environ,
        "CXX": str(compiler),
        "ANTIPHASE_CACHE": str(folder / "cache"),
        "LD_PRELOAD": " ".join(runtimes),
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1",  # Python itself leaks at its end
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "OMP_NUM_THREADS": "1",
    }


def run_python(sanitized: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=sanitized, capture_output=True, text=True, check=False)


OVERFLOW = """
import ctypes, torch
from antiphase.ops.arguments import Arguments
from antiphase.ops.fused_cpu import abi, native
library = native.library()
q, k = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 100, 8)
call = abi.kernel_arguments(
    library, Arguments(q, k, None, None, k, None, None, None, False, 1.0, 1.0), backward=False
)
out, statistics = torch.empty(1, 1, 1, 8), torch.empty(2, 1, 1, 1)
call.out = abi._view(out)
abi._set_statistics(call, statistics)
call.Tk = 101
abi.run(library.handle.antiphase_forward, ctypes.byref(call), 1)
"""


@pytest.mark.slow
def test_sanitizers_are_in_the_library(sanitized: dict[str, str]):
    """One key more than there are, read by the kernel for decoding, is found."""
    result = run_python(sanitized, "-c", OVERFLOW)
    assert result.returncode != 0
    assert "heap-buffer-overflow" in result.stderr, result.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["--calls", "--gradients"])
def test_random_calls_under_sanitizers(sanitized: dict[str, str], kind: str):
    counts = {"--calls": 0, "--gradients": 0} | {kind: 400}
    options = [f"{name}={count}" for name, count in counts.items()]
    fuzz = ("-m", "tests.ops.fuzz", "--level=c++", "--seed=5000", *options)
    result = run_python(sanitized, *fuzz)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    done = f"calls {counts['--calls']}, with gradients {counts['--gradients']}, crashes 0"
    assert done in result.stdout


LINEAR = """
import itertools, torch
from antiphase.ops import linear
torch.set_grad_enabled(False)
dtypes = (torch.float32, torch.bfloat16, torch.float16)
for dtype, rows, M, K in itertools.product(dtypes, (1, 4), (1, 3, 4, 37), (1, 31, 64, 100)):
    x, weight, bias = (torch.randn(s).to(dtype) for s in ((rows, K), (M, K), (M,)))
    assert linear(x, weight, bias).isfinite().all()
print("done")
"""


@pytest.mark.slow
def test_products_of_few_rows_under_sanitizers(sanitized: dict[str, str]):
    result = run_python(sanitized, "-c", LINEAR)
    assert result.stdout == "done\n", result.stderr[-3000:]
