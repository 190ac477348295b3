"""The C++ level: build `csrc/` and prove it on this machine (`abi.py` calls it).

The library is built once for a source, PyTorch and instruction set, and lies in the cache folder
beside a manifest with its checksum. Before first use on a processor it runs in a process of
its own against the formula, so that a library this processor cannot run never enters ours. Whatever
goes wrong raises `Unavailable` with the reason; the caller goes on with the Python level.
"""

import contextlib
import ctypes
import functools
import hashlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from antiphase.cache_folder import cache_folder
from antiphase.cpu import FATAL, ISA_VARIABLE, cpu_key, guard_bf16
from antiphase.ops.arguments import Arguments
from antiphase.ops.fused_cpu.abi import KERNELS, Call, Library, backward, forward, tile_rate

SOURCES = Path(__file__).with_name("csrc")
SWITCH = "ANTIPHASE_NATIVE"
_BUILD_SECONDS = 300
_TRIAL_SECONDS = 120
_OPTIONS = ("-std=c++20", "-O3", "-fPIC", "-shared", "-fopenmp", "-fno-math-errno")
_FLAGS = {
    "AVX512": ("-mavx512f", "-mavx512dq", "-mavx512vl", "-mavx512bw", "-mfma", "-mf16c"),
    "AVX2": ("-mavx2", "-mfma", "-mf16c"),
}


class Unavailable(Exception):  # noqa: N818 (a state of the machine, not a fault)
    """The C++ level cannot be used here; the message says why."""


def compiler() -> str | None:
    """Return the C++ compiler PyTorch's extensions would use, None if it is not there."""
    return shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++")


def command(cxx: str, output: Path) -> list[str]:
    """Return the command that compiles the kernels for this PyTorch and instruction set."""
    from torch.utils.cpp_extension import include_paths, library_paths

    capability = torch.backends.cpu.get_cpu_capability()
    defines = [f"-DCPU_CAPABILITY={capability}", f"-DCPU_CAPABILITY_{capability}"]
    # The OpenMP runtime comes with PyTorch and is loaded already: compile for it, and link the
    # system's by the same name, so that one pool of threads serves both.
    return [
        cxx,
        *(*_OPTIONS, "-fvisibility=hidden"),
        *_FLAGS.get(capability, ()),
        *(defines if capability in _FLAGS else ["-DCPU_CAPABILITY=DEFAULT"]),
        *(f"-I{path}" for path in include_paths()),
        str(SOURCES / "kernels.cpp"),
        *("-o", str(output)),
        *(f"-L{path}" for path in library_paths()),
        *("-ltorch_cpu", "-lc10"),
    ]


def library_path() -> Path:
    """Return where the library for this source, PyTorch and instruction set lies in the cache."""
    capability = torch.backends.cpu.get_cpu_capability()
    source = [path.read_text() for path in sorted(SOURCES.iterdir())]
    flags = (*_OPTIONS, *_FLAGS.get(capability, ()))
    parts = (*source, torch.__version__, platform.machine(), capability, *flags)
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    return cache_folder() / "kernels" / f"antiphase_cpu_{key}.so"


def build(*, force: bool = False, say: bool = True) -> Path:
    """Compile the kernels into the cache unless they are there; return the library's path."""
    path = library_path()
    if not force and _whole(path):
        return path
    cxx = compiler()
    if cxx is None:
        raise Unavailable("no C++ compiler (c++, g++ or $CXX) was found")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _only_builder(path), tempfile.TemporaryDirectory(dir=path.parent) as scratch:
            if not force and _whole(path):
                return path  # another process was faster
            if say:
                print("antiphase: building the CPU kernels, once (about 20 s)", file=sys.stderr)
            _compile(cxx, Path(scratch) / path.name, path)
    except OSError as error:
        raise Unavailable(
            f"the cache folder {path.parent} cannot be written ({error.strerror or error}); "
            "set ANTIPHASE_CACHE to a folder that can"
        ) from error
    return path


def _compile(cxx: str, output: Path, path: Path) -> None:
    try:
        run = subprocess.run(
            command(cxx, output),
            capture_output=True,
            text=True,
            timeout=_BUILD_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{cxx} could not be run: {error}") from error
    if run.returncode:
        lines = [line for line in run.stderr.splitlines() if "error" in line] or ["no message"]
        raise Unavailable(f"{cxx} could not compile the kernels: {lines[0].strip()}")
    manifest = output.with_suffix(".json")
    manifest.write_text(json.dumps({"sha256": _checksum(output)}))
    os.replace(output, path)
    os.replace(manifest, path.with_suffix(".json"))


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _whole(path: Path) -> bool:
    """Tell whether the library is there and is what its manifest says."""
    try:
        manifest = json.loads(path.with_suffix(".json").read_text())
        return bool(manifest["sha256"] == _checksum(path))
    except (OSError, ValueError, KeyError, TypeError):
        return False


@contextlib.contextmanager
def _only_builder(path: Path) -> Iterator[None]:
    """Hold the build lock; the system frees it when a builder dies."""
    try:
        import fcntl
    except ImportError:  # no such locks here: builders may meet, each replaces the file whole
        yield
        return
    with open(path.with_suffix(".lock"), "w") as lock:
        deadline = time.monotonic() + _BUILD_SECONDS
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise Unavailable("another process has been building for too long") from None
                time.sleep(0.2)
        yield


def _open(path: Path) -> ctypes.CDLL:
    try:
        handle = ctypes.CDLL(str(path))
        word, text, call = ctypes.c_int64, ctypes.c_char_p, ctypes.POINTER(Call)
        handle.antiphase_call_size.restype = word
        handle.antiphase_rate.argtypes, handle.antiphase_rate.restype = [word], ctypes.c_double
        handle.antiphase_forward.argtypes = [call, word, text, word]
        handle.antiphase_backward.argtypes = [call, text, word]
        for run in (handle.antiphase_forward, handle.antiphase_backward):
            run.restype = word
        size = handle.antiphase_call_size()
    except (OSError, AttributeError) as error:
        raise Unavailable(f"the library could not be loaded: {error}") from error
    if size != ctypes.sizeof(Call):
        raise Unavailable("the library has another interface than this package")
    return handle


def trial(path: Path) -> dict[str, float]:
    """Time the micro-kernels and hold each against the formula; a wrong one gets the rate 0.

    Runs without a safety net: a kernel this processor cannot execute kills the process.
    """
    handle = _open(path)
    rates = {name: tile_rate(handle, i) for i, name in enumerate(KERNELS)}
    if not rates[KERNELS[0]]:
        raise Unavailable("this PyTorch has no fp32 micro-kernel (brgemm) on this processor")
    if not _is_right(Library(path, handle, rates), torch.float32, 1e-4):
        raise Unavailable("the kernels are wrong on this processor")
    for name in KERNELS:
        only = Library(path, handle, {other: float(other == name) for other in KERNELS})
        if rates[name] and not _is_right(only, torch.bfloat16, 5e-2):
            rates[name] = 0.0
    if not any(rates.values()):
        raise Unavailable("no micro-kernel is right in bf16 on this processor")
    return rates


def _is_right(library: Library, dtype: torch.dtype, tolerance: float) -> bool:
    """Tell whether small calls, forward, decoding and backward, agree with the formula."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    def close(a: Tensor | None, b: Tensor) -> bool:
        return a is not None and torch.allclose(a.float(), b, atol=tolerance * float(b.abs().max()))

    for rows in (1, 70):  # decoding and the rest
        q1, q2 = draw(1, 2, rows, 16), draw(1, 2, rows, 16)
        k1, k2, v = draw(1, 1, 330, 16), draw(1, 1, 330, 16), draw(1, 1, 330, 24)
        lam, dout = draw(1, 2, rows, 1), draw(1, 2, rows, 24).to(dtype)
        leaves = [x.to(dtype).float().requires_grad_() for x in (q1, k1, q2, k2, v)]
        a, b, c, d, e = leaves
        maps = [torch.softmax(q @ k.mT / 4, -1) for q, k in ((a, b), (c, d))]
        expected = (maps[0] - lam * maps[1]) @ e
        slopes = torch.autograd.grad(expected, leaves, dout.float())
        q1, k1, q2, k2, v = (x.detach().to(dtype) for x in leaves)
        small = Arguments(q1, k1, q2, k2, v, lam, None, None, False, 0.25, 0.25)
        out, lse1, lse2 = forward(library, small)
        grads = backward(library, small, dout, lse1, lse2)
        pairs = zip((out, *grads[:5]), (expected.detach(), *slopes), strict=True)
        if not all(close(ours, theirs) for ours, theirs in pairs):
            return False
    return True


def _trial_elsewhere(path: Path) -> dict[str, Any]:
    """Run the trial in a process of its own; return what it printed or the signal it died of."""
    package_root = str(Path(__file__).parents[3])
    search = os.pathsep.join(filter(None, (package_root, os.environ.get("PYTHONPATH"))))
    try:
        run = subprocess.run(
            [sys.executable, "-m", "antiphase.ops.fused_cpu.self_test", str(path)],
            env={**os.environ, "PYTHONPATH": search},
            capture_output=True,
            text=True,
            timeout=_TRIAL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"the trial run did not end in {_TRIAL_SECONDS} s") from error
    died = signal.Signals(-run.returncode).name if run.returncode < 0 else None
    if died in FATAL:
        return {"failure": f"the trial run on this processor died of {died}"}
    if run.returncode:
        last = (run.stderr.strip().splitlines() or [died or "no message"])[-1]
        raise Unavailable(f"the trial run could not be made: {last}")
    return dict(json.loads(run.stdout.splitlines()[-1]))


def _prove(path: Path) -> dict[str, float]:
    """Return the rates measured on this processor, by a trial if there was none yet.

    What the trial found holds for one library, one processor and one cap on oneDNN.
    """
    cap = os.environ.get(ISA_VARIABLE, "")
    about = hashlib.sha256(f"{_checksum(path)} {cpu_key()} {cap}".encode()).hexdigest()[:12]
    note = path.with_name(f"{path.stem}-{about}.json")
    try:
        verdict = json.loads(note.read_text())
    except (OSError, ValueError):
        verdict = _trial_elsewhere(path)
        with contextlib.suppress(OSError):  # then it is tried again next time
            temporary = note.with_name(f"{note.name}.{os.getpid()}")
            temporary.write_text(json.dumps(verdict))
            os.replace(temporary, note)
    if verdict.get("failure"):
        raise Unavailable(verdict["failure"])
    return {name: float(verdict["rates"][name]) for name in KERNELS}


@functools.cache
def _attempt() -> Library | Unavailable:
    if os.environ.get(SWITCH, "1") == "0":
        return Unavailable(f"switched off by {SWITCH}=0")
    guard_bf16()
    try:
        path = build()
        rates = _prove(path)  # elsewhere, before the library enters this process
        return Library(path, _open(path), rates)
    except Unavailable as reason:
        return reason
    except Exception as error:  # a level that cannot start must never stop the user's model
        return Unavailable(f"{type(error).__name__}: {error}")


def library() -> Library:
    """Return the C++ level, built on first use; raise `Unavailable` where it cannot be had."""
    found = _attempt()
    if isinstance(found, Unavailable):
        raise found
    return found
