"""When the C++ level cannot be used, the Python level runs, with one warning that says why.

Each case is a fresh process with its own cache folder. The processes are forked from one that has
imported torch and antiphase and called nothing, which saves seconds per case. Where only the result
of the compiler matters, a small script replaces it.
"""

import ctypes
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from antiphase.ops.fused_cpu import native
from antiphase.ops.fused_cpu.abi import KernelArguments
from tests.ops import native_case

FORK = multiprocessing.get_context("forkserver")
FORK.set_forkserver_preload([native_case.__name__])


def start(tmp_path: Path, name: str = "report", **environment: str) -> BaseProcess:
    """Start a process that reports to the file `name`."""
    (tmp_path / name).unlink(missing_ok=True)
    environment = {"ANTIPHASE_CACHE": str(tmp_path / "cache"), **environment}
    process = FORK.Process(target=native_case.run, args=(environment, tmp_path / name))
    process.start()
    return process


def finish(process: BaseProcess, tmp_path: Path, name: str = "report") -> dict[str, Any]:
    """Wait for a process; return its report, which must say that the results are correct."""
    process.join(timeout=300)
    assert process.exitcode == 0
    report = json.loads((tmp_path / name).read_text())
    assert report["correct"]
    return report


def run_case(tmp_path: Path, **environment: str) -> dict[str, Any]:
    return finish(start(tmp_path, **environment), tmp_path)


def assert_fell_back(report: dict[str, Any], *reasons: str) -> None:
    assert report["level"] == "python"
    assert len(report["warnings"]) == 1
    for reason in reasons:
        assert reason in report["warnings"][0]


def fake_compiler(tmp_path: Path, script: str) -> str:
    """Write a compiler that runs `script` with the path of its output in $out."""
    path = tmp_path / "compiler"
    find_output = 'while [ $# -gt 0 ]; do [ "$1" = -o ] && out="$2"; shift; done\n'
    path.write_text(f"#!/bin/sh\n{find_output}{script}\n")
    path.chmod(0o755)
    return str(path)


def copy_library(cxx, *, tested: bool = True) -> str:
    """Return a script that copies the built library, with the result of its self-test."""
    copy = f'cp "{cxx.path}" "$out"'
    if tested:
        results = cxx.path.with_name(f"{cxx.path.stem}-")
        copy += f'; cp "{results}"*.json "$(dirname "$out")/.."'
    return copy


def compile_instead(tmp_path: Path, source: str) -> str:
    """Return a compiler that builds a tiny library from `source` instead of the kernels."""
    (tmp_path / "tiny.cpp").write_text(source)
    build = f'{native.compiler()} -shared -fPIC "{tmp_path}/tiny.cpp" -o "$out"'
    return fake_compiler(tmp_path, build)


def test_no_compiler(tmp_path: Path):
    report = run_case(tmp_path, CXX="/nowhere/c++", PATH=str(tmp_path))
    assert_fell_back(report, "no C++ compiler")


def test_switched_off(tmp_path: Path):
    report = run_case(tmp_path, ANTIPHASE_NATIVE="0")
    assert_fell_back(report, "switched off by ANTIPHASE_NATIVE=0")


def test_compiler_that_fails(tmp_path: Path):
    compiler = fake_compiler(tmp_path, 'echo "kernel.cpp:1: error: no such luck" >&2; exit 1')
    assert_fell_back(run_case(tmp_path, CXX=compiler), "could not compile", "no such luck")


def test_cache_that_cannot_be_written(cxx, tmp_path: Path):
    (tmp_path / "file").write_text("not a folder")
    report = run_case(tmp_path, ANTIPHASE_CACHE=str(tmp_path / "file" / "cache"))
    assert_fell_back(report, "cannot be written", "ANTIPHASE_CACHE")


def test_missing_micro_kernel_symbol(cxx, tmp_path: Path):
    source = 'extern "C" void missing_brgemm(); extern "C" void f() { missing_brgemm(); }'
    report = run_case(tmp_path, CXX=compile_instead(tmp_path, source))
    assert_fell_back(report, "could not be loaded", "missing_brgemm")


def test_library_of_another_interface(cxx, tmp_path: Path):
    source = """
    extern "C" long antiphase_arguments_size() { return 8; }
    extern "C" double antiphase_rate(long) { return 1.0; }
    extern "C" long antiphase_forward() { return 0; }
    extern "C" long antiphase_backward() { return 0; }
    """
    report = run_case(tmp_path, CXX=compile_instead(tmp_path, source))
    assert_fell_back(report, "another interface")


def test_library_that_this_processor_cannot_run(cxx, tmp_path: Path):
    """As when the cache came from another machine: the self-test dies, this process does not."""
    source = f"""
    extern "C" long antiphase_arguments_size() {{ return {ctypes.sizeof(KernelArguments)}; }}
    extern "C" double antiphase_rate(long) {{ __builtin_trap(); }}
    extern "C" long antiphase_forward() {{ return 0; }}
    extern "C" long antiphase_backward() {{ return 0; }}
    """
    report = run_case(tmp_path, CXX=compile_instead(tmp_path, source))
    assert_fell_back(report, "died of SIG")


def test_truncated_library_is_rebuilt(cxx, tmp_path: Path):
    """The checksum detects a truncated library; it is rebuilt, or unused without a compiler."""
    compiler = fake_compiler(tmp_path, copy_library(cxx))
    assert run_case(tmp_path, CXX=compiler)["level"] == "c++"
    (library,) = (tmp_path / "cache" / "kernels").glob("*.so")
    complete = library.read_bytes()
    library.write_bytes(complete[: len(complete) // 2])
    report = run_case(tmp_path, CXX=fake_compiler(tmp_path, "exit 1"))
    assert_fell_back(report, "could not compile")
    compiler = fake_compiler(tmp_path, copy_library(cxx))
    assert run_case(tmp_path, CXX=compiler)["level"] == "c++"
    assert library.read_bytes() == complete


def test_manifest_that_is_not_json(cxx, tmp_path: Path):
    compiler = fake_compiler(tmp_path, copy_library(cxx, tested=False))  # the self-test runs, too
    run_case(tmp_path, CXX=compiler)
    (library,) = (tmp_path / "cache" / "kernels").glob("*.so")
    library.with_suffix(".json").write_text("{")
    assert run_case(tmp_path, CXX=compiler)["level"] == "c++"


def test_two_processes_build_at_once(cxx, tmp_path: Path):
    """One builds, the other waits for it; the fake compiler counts how often it ran."""
    log = tmp_path / "built"
    slow = fake_compiler(tmp_path, f'echo once >> "{log}"; sleep 1; {copy_library(cxx)}')
    names = ("first", "second")
    processes = [start(tmp_path, name, CXX=slow) for name in names]
    for process, name in zip(processes, names, strict=True):
        assert finish(process, tmp_path, name)["level"] == "c++"
    assert log.read_text().count("once") == 1


def test_builder_killed_midway_leaves_nothing_behind(cxx, tmp_path: Path):
    started = tmp_path / "started"
    process = start(tmp_path, CXX=fake_compiler(tmp_path, f'touch "{started}"; sleep 10'))
    while not started.exists() and process.is_alive():
        time.sleep(0.05)
    process.kill()
    process.join()
    compiler = fake_compiler(tmp_path, copy_library(cxx))
    assert run_case(tmp_path, CXX=compiler)["level"] == "c++"


@pytest.mark.slow
@pytest.mark.parametrize("capability", ["avx2", "default"])
def test_other_instruction_sets(cxx, tmp_path: Path, capability: str):
    """The same source, built for narrower vectors, passes the tests of the C++ level."""
    tests = Path(__file__).with_name("test_backends.py")
    env = {**os.environ, "ANTIPHASE_CACHE": str(tmp_path), "ATEN_CPU_CAPABILITY": capability}
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", str(tests), "-k", "native or sink or decoding"],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-3000:]
    assert len(list((tmp_path / "kernels").glob("*.so"))) == 1


@pytest.mark.slow
def test_source_compiles_for_arm(tmp_path: Path):
    cross = shutil.which("aarch64-linux-gnu-g++")
    if cross is None:
        pytest.skip("NO ARM COMPILER: install g++-aarch64-linux-gnu to test that the source builds")
    command = native.command(cross, tmp_path / "arm.o")
    kept = [x for x in command if not x.startswith(("-m", "-DCPU_CAPABILITY", "-L", "-l", "-sh"))]
    subprocess.run([*kept, "-DCPU_CAPABILITY=DEFAULT", "-c"], check=True, capture_output=True)
