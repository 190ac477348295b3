"""The C++ level where things go wrong: each ends at the Python level with one clear warning.

Every scene is a fresh process with a cache folder of its own. Compilers are stood in for by small
scripts where only their outcome matters.
"""

import ctypes
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from antiphase.ops.fused_cpu import native
from antiphase.ops.fused_cpu.abi import Call

SCENE = """
import warnings
import torch
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    from antiphase import diff_attention, backend_for
    torch.manual_seed(0)
    x = [torch.randn(1, 2, 20, 16) for _ in range(5)]
    first = diff_attention(*x, 0.5, causal=True)
    second = diff_attention(*x, 0.5, causal=True)
    expected = diff_attention(*x, 0.5, causal=True, backend="reference")
    print("right:", torch.allclose(first, expected, atol=1e-5) and torch.equal(first, second))
    print("level:", backend_for(*x, 0.5, causal=True).level)
ours = [str(w.message) for w in caught if "Python level" in str(w.message)]
print("warnings:", len(ours))
print("\\n".join(ours))
"""


def start(tmp_path: Path, **environment: str) -> subprocess.Popen:
    env = {**os.environ, "ANTIPHASE_CACHE": str(tmp_path / "cache"), **environment}
    return subprocess.Popen(
        [sys.executable, "-c", SCENE],
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def play(tmp_path: Path, **environment: str) -> str:
    out, err = start(tmp_path, **environment).communicate(timeout=300)
    assert "right: True" in out, err
    return out


def fell_back(out: str, *reasons: str) -> None:
    assert "level: python" in out
    assert "warnings: 1" in out
    for reason in reasons:
        assert reason in out


def stand_in(tmp_path: Path, script: str) -> str:
    """Write a compiler that runs `script` with the wanted output's path in $out."""
    path = tmp_path / "compiler"
    find_output = 'while [ $# -gt 0 ]; do [ "$1" = -o ] && out="$2"; shift; done\n'
    path.write_text(f"#!/bin/sh\n{find_output}{script}\n")
    path.chmod(0o755)
    return str(path)


def library_from(tmp_path: Path, source: str) -> str:
    """Return a stand-in that builds a tiny library instead of the kernels."""
    (tmp_path / "tiny.cpp").write_text(source)
    build = f'{native.compiler()} -shared -fPIC "{tmp_path}/tiny.cpp" -o "$out"'
    return stand_in(tmp_path, build)


def test_no_compiler(tmp_path: Path):
    out = play(tmp_path, CXX="/nowhere/c++", PATH=str(tmp_path))
    fell_back(out, "no C++ compiler")


def test_switched_off(tmp_path: Path):
    fell_back(play(tmp_path, ANTIPHASE_NATIVE="0"), "switched off by ANTIPHASE_NATIVE=0")


def test_compiler_that_fails(tmp_path: Path):
    compiler = stand_in(tmp_path, 'echo "kernel.cpp:1: error: no such luck" >&2; exit 1')
    fell_back(play(tmp_path, CXX=compiler), "could not compile", "no such luck")


def test_cache_that_cannot_be_written(cxx, tmp_path: Path):
    (tmp_path / "file").write_text("not a folder")
    out = play(tmp_path, ANTIPHASE_CACHE=str(tmp_path / "file" / "cache"))
    fell_back(out, "cannot be written", "ANTIPHASE_CACHE")


def test_missing_micro_kernel_symbol(cxx, tmp_path: Path):
    source = 'extern "C" void brgemm_that_is_not_there(); extern "C" void f() { brgemm_that_is_not_there(); }'  # noqa: E501
    out = play(tmp_path, CXX=library_from(tmp_path, source))
    fell_back(out, "could not be loaded", "brgemm_that_is_not_there")


def test_library_of_another_interface(cxx, tmp_path: Path):
    source = """
    extern "C" long antiphase_call_size() { return 8; }
    extern "C" double antiphase_rate(long) { return 1.0; }
    extern "C" long antiphase_forward() { return 0; }
    extern "C" long antiphase_backward() { return 0; }
    """
    fell_back(play(tmp_path, CXX=library_from(tmp_path, source)), "another interface")


def test_library_this_processor_cannot_run(cxx, tmp_path: Path):
    """As when the cache came from another machine: the trial dies, the user's process does not."""
    source = f"""
    extern "C" long antiphase_call_size() {{ return {ctypes.sizeof(Call)}; }}
    extern "C" double antiphase_rate(long) {{ __builtin_trap(); }}
    extern "C" long antiphase_forward() {{ return 0; }}
    extern "C" long antiphase_backward() {{ return 0; }}
    """
    fell_back(play(tmp_path, CXX=library_from(tmp_path, source)), "died of SIG")


def test_half_written_library_is_built_anew(cxx, tmp_path: Path):
    """A library cut short is seen by its checksum; a compiler at hand mends it, else it is left."""
    good = stand_in(tmp_path, f'cp "{cxx.path}" "$out"')
    assert "level: c++" in play(tmp_path, CXX=good)
    (library,) = (tmp_path / "cache" / "kernels").glob("*.so")
    whole = library.read_bytes()
    library.write_bytes(whole[: len(whole) // 2])
    fell_back(play(tmp_path, CXX=stand_in(tmp_path, "exit 1")), "could not compile")
    good = stand_in(tmp_path, f'cp "{cxx.path}" "$out"')
    assert "level: c++" in play(tmp_path, CXX=good)
    assert library.read_bytes() == whole


def test_manifest_that_is_not_json(cxx, tmp_path: Path):
    good = stand_in(tmp_path, f'cp "{cxx.path}" "$out"')
    play(tmp_path, CXX=good)
    (library,) = (tmp_path / "cache" / "kernels").glob("*.so")
    library.with_suffix(".json").write_text("{")
    assert "level: c++" in play(tmp_path, CXX=good)


def test_two_processes_build_at_once(cxx, tmp_path: Path):
    """One builds, the other waits for it; the stand-in counts how often it ran."""
    log = tmp_path / "built"
    slow = stand_in(tmp_path, f'echo once >> "{log}"; sleep 3; cp "{cxx.path}" "$out"')
    both = [start(tmp_path, CXX=slow) for _ in range(2)]
    outputs = [process.communicate(timeout=300)[0] for process in both]
    assert all("right: True" in out and "level: c++" in out for out in outputs)
    assert log.read_text().count("once") == 1


def test_builder_killed_midway_leaves_nothing_behind(cxx, tmp_path: Path):
    started = tmp_path / "started"
    slow = stand_in(tmp_path, f'touch "{started}"; sleep 60')
    process = start(tmp_path, CXX=slow)
    while not started.exists() and process.poll() is None:
        time.sleep(0.05)
    process.kill()
    process.communicate()
    good = stand_in(tmp_path, f'cp "{cxx.path}" "$out"')
    assert "level: c++" in play(tmp_path, CXX=good)


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
