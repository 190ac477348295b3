"""When the C++ level cannot be used, the Python level runs, with one warning that says why.

Each case is a fresh process with its own cache folder. The processes are forked from one that has
imported torch and antiphase and called nothing, which saves seconds per case. Where only the result
of the compiler matters, a small script replaces it.
"""

import ctypes
import functools
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
import warnings
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch

from antiphase.ops import diff_attention
from antiphase.ops.fused_cpu import level, native, self_test
from antiphase.ops.fused_cpu.abi import KERNELS, KernelArguments
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
    extern "C" long antiphase_linear() { return 0; }
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
    extern "C" long antiphase_linear() {{ return 0; }}
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


@pytest.fixture
def built(cxx, tmp_path: Path, monkeypatch) -> Path:
    """A library in a cache of its own, with manifest and result of the self-test."""
    monkeypatch.setenv("ANTIPHASE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", fake_compiler(tmp_path, copy_library(cxx)))
    before = os.umask(0o002)  # private also where new files can be written by the group
    try:
        return native.build()
    finally:
        os.umask(before)


def stored_result(library: Path) -> Path:
    (found,) = library.parent.glob(f"{library.stem}-*.json")
    return found


PLACES = {
    "cache folder": lambda library: library.parents[1],
    "folder": lambda library: library.parent,
    "library": lambda library: library,
    "manifest": lambda library: library.with_suffix(".json"),
    "result": stored_result,
}


@pytest.mark.parametrize("place", PLACES)
def test_what_others_may_write_is_not_loaded(built: Path, tmp_path: Path, place: str):
    path = PLACES[place](built)
    path.chmod(0o770)
    reasons = (f"{path} can be written by other users", "ANTIPHASE_CACHE")
    assert_fell_back(run_case(tmp_path), *reasons)
    path.chmod(0o700)
    assert run_case(tmp_path)["level"] == "c++"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("place", PLACES)
def test_what_another_user_owns_is_not_loaded(built: Path, tmp_path: Path, place: str):
    os.chown(PLACES[place](built), 12345, -1)
    assert_fell_back(run_case(tmp_path), "belongs to user 12345", "ANTIPHASE_CACHE")


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_lock_that_is_no_file(built: Path, tmp_path: Path, kind: str):
    """A link would have its target opened for writing."""
    lock = built.with_suffix(".lock")
    lock.unlink()
    (tmp_path / "precious").write_text("content")
    if kind == "link":
        lock.symlink_to(tmp_path / "precious")
    else:
        os.mkfifo(lock)
    with pytest.raises(native.Unavailable, match=f"{lock.name} is (a symbolic link|not a regular)"):
        native.build(force=True)
    assert (tmp_path / "precious").read_text() == "content"


GOOD = {"brgemm fp32": 1.0, "brgemm bf16": 2.0, "blas bf16": 0.0}
CORRUPT = {
    "empty": "",
    "truncated": '{"rates": {"brgemm',
    "not UTF-8": b"\xff\xfe",
    "deep": "[" * 100_000,
    "list": "[]",
    "number": "1",
    "no keys": "{}",
    "null": '{"rates": null}',
    "failure that is no text": '{"failure": 1}',
    "empty failure": '{"failure": ""}',
    "missing kernel": json.dumps({"rates": {"brgemm fp32": 1.0}}),
    "negative": json.dumps({"rates": GOOD | {"blas bf16": -1.0}}),
    "NaN": json.dumps({"rates": GOOD | {"blas bf16": float("nan")}}),
    "infinite": json.dumps({"rates": GOOD | {"blas bf16": float("inf")}}),
    "huge": json.dumps({"rates": GOOD | {"blas bf16": 10**400}}),
    "text": json.dumps({"rates": GOOD | {"blas bf16": "1"}}),
    "boolean": json.dumps({"rates": GOOD | {"blas bf16": True}}),
    "nothing usable": json.dumps({"rates": dict.fromkeys(GOOD, 0)}),
}


@pytest.mark.parametrize("content", CORRUPT.values(), ids=CORRUPT)
def test_corrupt_result_of_the_self_test(built: Path, monkeypatch, content: str | bytes):
    """The self-test runs again, once, and its result replaces the corrupt one."""
    runs: list[Path] = []
    monkeypatch.setattr(
        native, "_run_self_test", lambda path: runs.append(path) or {"rates": dict(GOOD)}
    )
    stored = stored_result(built)
    stored.write_bytes(content if isinstance(content, bytes) else content.encode())
    for _ in range(2):
        assert native._verified_rates(built) == GOOD
    assert runs == [built]


def test_forced_build_tests_again(built: Path, cxx, tmp_path: Path, monkeypatch):
    """A failure that was stored does not stay for ever."""
    stored_result(built).write_text('{"failure": "died"}')
    with pytest.raises(native.Unavailable, match="died"):
        native._verified_rates(built)
    monkeypatch.setenv("CXX", fake_compiler(tmp_path, copy_library(cxx, tested=False)))
    native.build(force=True)
    monkeypatch.setattr(native, "_run_self_test", lambda path: {"rates": dict(GOOD)})
    assert native._verified_rates(built) == GOOD


def test_warnings_as_errors_do_not_fail_the_call(monkeypatch, capsys):
    monkeypatch.setenv("ANTIPHASE_NATIVE", "0")
    monkeypatch.setattr(native, "_load", native._load.__wrapped__)
    monkeypatch.setattr(level, "unavailable", functools.cache(level.unavailable.__wrapped__))
    inputs = [torch.randn(1, 2, 5, 8) for _ in range(5)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = diff_attention(*inputs, 0.5)
    torch.testing.assert_close(found, diff_attention(*inputs, 0.5, backend="reference"))
    assert capsys.readouterr().err.count("switched off by ANTIPHASE_NATIVE=0") == 1


@pytest.mark.parametrize(
    ("rates", "chosen"),
    [
        ((100, 105, 0), "brgemm fp32"),  # not clearly faster
        ((100, 109, 200), "blas bf16"),
        ((100, 150, 120), "brgemm bf16"),
        ((100, 0, 0), "brgemm fp32"),
        ((0, 0, 3), "blas bf16"),  # fp32 brgemm gives wrong results in bf16
    ],
)
def test_choice_of_the_micro_kernel(rates: tuple[float, ...], chosen: str):
    assert native.choose_kernel(dict(zip(KERNELS, rates, strict=True))) == chosen


def test_pinned_micro_kernel():
    rates = dict(zip(KERNELS, (100.0, 300.0, 0.0), strict=True))
    assert native.choose_kernel(rates, "brgemm fp32") == "brgemm fp32"
    with pytest.warns(RuntimeWarning, match="'blas bf16': this machine has no such micro-kernel"):
        assert native.choose_kernel(rates, "blas bf16") == "brgemm bf16"


def test_micro_kernel_pinned_by_the_environment(cxx, monkeypatch):
    monkeypatch.setattr(native, "_load", native._load.__wrapped__)
    for i, name in enumerate(KERNELS):
        if cxx.rates[name]:
            monkeypatch.setenv("ANTIPHASE_KERNEL", name)
            assert native.library().bf16_kernel == i
    monkeypatch.setenv("ANTIPHASE_KERNEL", "brgemm fp16")
    with pytest.raises(ValueError, match=r"got 'brgemm fp16', allowed are brgemm fp32, .* mean"):
        native.library()


def test_rates_under_load(monkeypatch):
    """A load that comes and goes does not fall on one micro-kernel alone."""
    true, calls = (100.0, 200.0, 50.0), []

    def tile_rate(handle: None, kernel: int) -> float:
        calls.append(kernel)
        return true[kernel] * (0.2 if len(calls) < 14 else 1.0)

    monkeypatch.setattr(self_test, "tile_rate", tile_rate)
    assert self_test.measure_rates(None) == dict(zip(KERNELS, true, strict=True))
    assert calls[:6] == [0, 1, 2, 0, 1, 2]


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
