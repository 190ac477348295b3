"""Find or build the C++ library of `csrc/`, and load it.

A wheel for x86-64 Linux has a prebuilt library per instruction set (`hatch_build.py`). Where there
is none, or it fails its test, the library is built once per source, PyTorch version and instruction
set, into the cache folder, beside a manifest with its checksum, which detects a damaged file. A
library is loaded only if nobody else owns or may write it (`cache_folder.distrust`). Before its
first use with a processor and a PyTorch version, `self_test.py` runs it in a separate process, so
that a library that they cannot run is never loaded here. Every failure raises `Unavailable` with
the reason, and the caller falls back to the Python level.
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
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import torch

from antiphase.cache_folder import cache_folder, create_private, distrust, write_private
from antiphase.cpu import FATAL, ISA_VARIABLE, cpu_key, guard_bf16, warn
from antiphase.isolated_process import run_isolated
from antiphase.ops.fused_cpu.abi import KERNELS, KernelArguments, Library
from antiphase.options import nearest

SOURCES = Path(__file__).with_name("csrc")
PREBUILT = Path(__file__).with_name("prebuilt")  # only in wheels for x86-64 Linux
SWITCH = "ANTIPHASE_NATIVE"
PIN = "ANTIPHASE_KERNEL"
CLEARLY_FASTER = 1.1  # than fp32 brgemm: less may be noise, and would change results between runs
_BUILD_SECONDS = 300
_SELF_TEST_SECONDS = 120
_OPTIONS = ("-std=c++20", "-O3", "-fPIC", "-shared", "-fno-math-errno")
_FLAGS = {
    "AVX512": ("-mavx512f", "-mavx512dq", "-mavx512vl", "-mavx512bw", "-mfma", "-mf16c"),
    "AVX2": ("-mavx2", "-mfma", "-mf16c"),
}


class Unavailable(Exception):  # noqa: N818 (a state of the machine, not an error)
    """The C++ level cannot be used on this machine; the message says why."""


def library() -> Library:
    """Return the loaded C++ library: prebuilt, or built on first use.

    Raises:
        Unavailable: If this machine has none.
        ValueError: If `ANTIPHASE_KERNEL` names no micro-kernel.
    """
    loaded = _load()
    if isinstance(loaded, Unavailable):
        raise loaded
    return loaded


@functools.cache
def _load() -> Library | Unavailable:
    pinned = _pinned_kernel()
    if os.environ.get(SWITCH, "1") == "0":
        return Unavailable(f"switched off by {SWITCH}=0")
    guard_bf16()
    reasons: list[str] = []
    for origin, find in (("prebuilt", prebuilt), ("built from source", build)):
        try:
            path = find()
            rates = _verified_rates(path)  # in another process, before the library is loaded here
            handle = open_library(path)
            kernel = KERNELS.index(choose_kernel(rates, pinned))
            why = f" ({reasons[0]})" if reasons else ""
            return Library(path, handle, rates, kernel, origin + why)
        except Unavailable as reason:
            reasons.append(f"{origin}: {reason}")
        except Exception as error:  # a level that cannot start must never stop the user's model
            reasons.append(f"{origin}: {type(error).__name__}: {error}")
    return Unavailable("; ".join(reasons))


def prepare(*, force: bool = False) -> Library:
    """Find or build the library and test it, ahead of its first use.

    Args:
        force: Test again, and unless it is prebuilt, build again.

    Raises:
        Unavailable: If this machine has none.
    """
    if force:
        guard_bf16()
        try:
            path = prebuilt()
            _forget_results(path)
            _verified_rates(path)
        except Unavailable:
            build(force=True)
    return library()


def prebuilt() -> Path:
    """Return the path of the package's library for this instruction set.

    Raises:
        Unavailable: If the package has none, or others may write it.
    """
    capability = torch.backends.cpu.get_cpu_capability()
    path = PREBUILT / library_name(capability)
    if not PREBUILT.is_dir():
        raise Unavailable("none in this installation")
    if not path.is_file():
        raise Unavailable(f"none for {capability} in this installation")
    for place, code in ((PREBUILT, SOURCES.parent), (path, Path(__file__))):
        # Whoever can change the package's code has it executed anyway.
        if distrust(place) is not None and _writers(place) != _writers(code):
            raise Unavailable(
                f"{place} can be written by others than the package's code; reinstall antiphase"
            )
    return path


def library_name(capability: str) -> str:
    """Return the file name of the prebuilt library for an instruction set."""
    return f"antiphase_cpu_{capability.lower()}.so"


def _writers(path: Path) -> tuple[int, int, int]:
    """Return what decides who can write a file or folder: owner, group and permissions."""
    status = path.stat()
    return status.st_uid, status.st_gid, status.st_mode & 0o022


def _pinned_kernel() -> str | None:
    """Return the micro-kernel that `ANTIPHASE_KERNEL` names, None if it is not set."""
    name = os.environ.get(PIN)
    if name and name not in KERNELS:
        raise ValueError(
            f"{PIN}: got {name!r}, allowed are {', '.join(KERNELS)}{nearest(name, KERNELS)}"
        )
    return name or None


def choose_kernel(rates: Mapping[str, float], pinned: str | None = None) -> str:
    """Return the micro-kernel for bf16 operands.

    Args:
        rates: GFLOP/s by micro-kernel; 0 for one that this machine lacks.
        pinned: to use if this machine has it; else a warning says so.

    Returns:
        The pinned one; else fp32 brgemm, unless another is clearly faster or it is not usable.
    """
    if pinned is not None and rates[pinned]:
        return pinned
    default, fastest = KERNELS[0], max(KERNELS, key=lambda name: rates[name])
    chosen = fastest if rates[fastest] > CLEARLY_FASTER * rates[default] else default
    if pinned is not None:
        warn(f"{PIN}={pinned!r}: this machine has no such micro-kernel; {chosen!r} is used")
    return chosen


def compiler() -> str | None:
    """Return the C++ compiler that PyTorch's extensions would use, None if there is none."""
    found = shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++")
    return None if found is None else os.path.abspath(found)


def command(
    cxx: str, output: Path, capability: str | None = None, *, portable: bool = False
) -> list[str]:
    """Return the command that compiles the kernels for this PyTorch.

    Args:
        cxx: the compiler.
        output: the library to write.
        capability: the instruction set, as PyTorch names it; None for this processor's.
        portable: For other machines and PyTorch versions, too (only with g++): the OpenMP runtime
            is not named, because PyTorch brings it under different names and has it loaded. The
            library has no symbols and paths of this machine.
    """
    from torch.utils.cpp_extension import include_paths, library_paths

    capability = capability or torch.backends.cpu.get_cpu_capability()
    defines = [f"-DCPU_CAPABILITY={capability}", f"-DCPU_CAPABILITY_{capability}"]
    # The system's OpenMP runtime has the name of the one that PyTorch has loaded, or its symbols
    # are found there first, so that both use one thread pool.
    openmp = ["-Xpreprocessor", "-fopenmp", "-s"] if portable else ["-fopenmp"]
    hidden = (*include_paths(), SOURCES) if portable else ()
    return [
        cxx,
        *(*_OPTIONS, *openmp, "-fvisibility=hidden"),
        *_FLAGS.get(capability, ()),
        *(defines if capability in _FLAGS else ["-DCPU_CAPABILITY=DEFAULT"]),
        *(f"-I{path}" for path in include_paths()),
        *(f"-fmacro-prefix-map={path}/=" for path in hidden),
        str(SOURCES / "kernels.cpp"),
        *("-o", str(output)),
        *(f"-L{path}" for path in library_paths()),
        *("-ltorch_cpu", "-lc10"),
    ]


def library_path() -> Path:
    """Return the path in the cache for this source, PyTorch version and instruction set."""
    capability = torch.backends.cpu.get_cpu_capability()
    source = [path.read_text() for path in sorted(SOURCES.iterdir())]
    flags = (*_OPTIONS, *_FLAGS.get(capability, ()))
    parts = (*source, torch.__version__, platform.machine(), capability, *flags)
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    return _folder() / f"antiphase_cpu_{key}.so"


def _folder() -> Path:
    """Return the folder of built libraries and of all results of self-tests."""
    return cache_folder() / "kernels"


def build(*, force: bool = False) -> Path:
    """Compile the kernels into the cache unless they are there; takes about 20 seconds.

    Args:
        force: Compile even if the library is there, and forget the results of its self-tests.

    Returns:
        The library's path.

    Raises:
        Unavailable: If there is no compiler, it fails, or the cache folder is not writable, or
            another user owns it or may write it.
    """
    path = library_path()
    places = (path.parents[1], path.parent, path, path.with_suffix(".json"))
    _require_private(*places)
    if not force and _is_intact(path):
        return path
    cxx = compiler()
    if cxx is None:
        raise Unavailable("no C++ compiler (c++, g++ or $CXX) was found")
    try:
        create_private(path.parent)
        _require_private(*places)
        with _build_lock(path), tempfile.TemporaryDirectory(dir=path.parent) as scratch:
            if not force and _is_intact(path):
                return path  # another process was faster
            print("antiphase: building the CPU kernels, once (about 20 s)", file=sys.stderr)
            _compile(cxx, Path(scratch) / path.name, path)
            if force:  # test it again, too
                _forget_results(path)
    except OSError as error:
        raise Unavailable(
            f"the cache folder {path.parent} cannot be written ({error.strerror or error}); "
            "set ANTIPHASE_CACHE to a writable folder"
        ) from error
    return path


def _compile(cxx: str, output: Path, path: Path) -> None:
    """Compile to `output`, then move it to `path` with its manifest."""
    try:
        run = subprocess.run(
            command(cxx, output),
            cwd=output.parent,
            stdin=subprocess.DEVNULL,
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
    output.chmod(0o700)
    checksum = _checksum(output)
    os.replace(output, path)
    write_private(path.with_suffix(".json"), json.dumps({"sha256": checksum}))


def _require_private(*places: Path) -> None:
    """Raise `Unavailable` if others own or may write one of these files and folders."""
    for place in places:
        reason = distrust(place)
        if reason is not None:
            raise Unavailable(reason)


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _is_intact(path: Path) -> bool:
    """Tell whether the library exists and is complete: it has the checksum of its manifest."""
    try:
        manifest = json.loads(path.with_suffix(".json").read_text())
        return bool(manifest["sha256"] == _checksum(path))
    except (OSError, ValueError, KeyError, TypeError):
        return False


@contextlib.contextmanager
def _build_lock(path: Path) -> Iterator[None]:
    """Hold the build lock; the operating system releases it when the process dies."""
    try:
        import fcntl
    except ImportError:  # no such locks here: two builders may run, each replaces the file at once
        yield
        return
    with _open_lock(path.with_suffix(".lock")) as lock:
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


def _open_lock(path: Path) -> IO[str]:
    """Open the lock's file, never what a symbolic link points to."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags, mode=0o600)
    except OSError as error:
        if path.is_symlink():
            raise Unavailable(f"{path} is a symbolic link, expected a file; delete it") from error
        raise
    lock = os.fdopen(descriptor, "w")
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        lock.close()
        raise Unavailable(f"{path} is not a regular file; delete it")
    return lock


def open_library(path: Path) -> ctypes.CDLL:
    """Load the library into this process and declare its functions."""
    try:
        handle = ctypes.CDLL(str(path))
        integer, text, arguments = ctypes.c_int64, ctypes.c_char_p, ctypes.c_void_p
        handle.antiphase_arguments_size.restype = integer
        handle.antiphase_rate.argtypes, handle.antiphase_rate.restype = [integer], ctypes.c_double
        handle.antiphase_forward.argtypes = [arguments, integer, text, integer]
        handle.antiphase_backward.argtypes = [arguments, text, integer]
        handle.antiphase_linear.argtypes = [arguments] * 4 + [integer] * 4 + [text, integer]
        functions = (handle.antiphase_forward, handle.antiphase_backward, handle.antiphase_linear)
        for function in functions:
            function.restype = integer
        size = handle.antiphase_arguments_size()
    except (OSError, AttributeError) as error:
        raise Unavailable(f"the library could not be loaded: {error}") from error
    if size != ctypes.sizeof(KernelArguments):
        raise Unavailable("the library has another interface than this package")
    return handle


def _verified_rates(path: Path) -> dict[str, float]:
    """Return the micro-kernels' rates on this processor, from the self-test or its stored result.

    A result is valid for one library, one PyTorch version, one processor and one cap on oneDNN.
    """
    cap = os.environ.get(ISA_VARIABLE, "")
    parts = f"{_checksum(path)} {torch.__version__} {cpu_key()} {cap}"
    key = hashlib.sha256(parts.encode()).hexdigest()[:12]
    stored = _folder() / f"{path.stem}-{key}.json"
    _require_private(stored.parents[1], stored.parent, stored)
    result = _read_result(stored)
    if result is None:
        result = _run_self_test(path)
        with contextlib.suppress(OSError):  # then it is tested again next time
            create_private(stored.parent)
            write_private(stored, json.dumps(result))
    if "failure" in result:
        raise Unavailable(result["failure"])
    return {name: float(result["rates"][name]) for name in KERNELS}


def _forget_results(path: Path) -> None:
    """Delete the results of a library's self-tests."""
    for stored in _folder().glob(f"{path.stem}-*.json"):
        stored.unlink()


def _read_result(stored: Path) -> dict[str, Any] | None:
    """Return a stored result of the self-test; None if there is none or it is corrupt."""
    try:
        return _checked_result(json.loads(stored.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError):
        return None


def _checked_result(result: Any) -> dict[str, Any]:
    """Return a result of the self-test: a failure or rates; raise ValueError if it is neither."""
    match result:
        case {"failure": str(reason)} if reason:
            return {"failure": reason}
        case {"rates": {**found}}:
            rates = {name: found.get(name) for name in KERNELS}
            if all(map(_is_rate, rates.values())) and any(rates.values()):
                return {"rates": rates}
    raise ValueError(f"no result of the self-test: {result!r}")


def _is_rate(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < 1e9  # false for NaN


def _run_self_test(path: Path) -> dict[str, Any]:
    """Run the self-test in a separate process; return its result, or the signal that killed it."""
    code = "from antiphase.ops.fused_cpu.self_test import main; main()"
    try:
        run = run_isolated(code, str(path), timeout=_SELF_TEST_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"the self-test did not end within {_SELF_TEST_SECONDS} s") from error
    died = signal.Signals(-run.returncode).name if run.returncode < 0 else None
    if died in FATAL:
        return {"failure": f"the self-test died of {died} on this processor"}
    if run.returncode:
        last = (run.stderr.strip().splitlines() or [died or "no message"])[-1]
        raise Unavailable(f"the self-test could not be run: {last}")
    return _checked_result(json.loads(run.stdout.splitlines()[-1]))
