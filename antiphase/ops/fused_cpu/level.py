"""The choice between the two levels of `fused_cpu`, C++ or Python, and the reason for it.

The C++ level supports fp32, bf16 and fp16; the Python level supports fp64, too.
"""

import contextlib
import functools
from collections.abc import Iterator
from contextvars import ContextVar

from antiphase.cpu import warn
from antiphase.ops.arguments import Arguments
from antiphase.ops.fused_cpu import abi, native

_python_only: ContextVar[bool] = ContextVar("antiphase_python_only", default=False)


@contextlib.contextmanager
def python_level() -> Iterator[None]:
    """Use the Python level inside this block, forward and backward (to measure or to test it)."""
    token = _python_only.set(True)
    try:
        yield
    finally:
        _python_only.reset(token)


def requested_python() -> bool:
    """Tell whether this runs inside `python_level`."""
    return _python_only.get()


def unsupported_by_cpp(args: Arguments) -> str | None:
    """Say why the C++ level has no code for these arguments; None if it has."""
    if args.q1.dtype not in abi.DTYPES:
        return f"{args.q1.dtype} is not supported"
    return None


def why_python(args: Arguments) -> str | None:
    """Say why the Python level runs these arguments now; None if the C++ level does."""
    if requested_python():
        return "requested by python_level()"
    return unsupported_by_cpp(args) or unavailable()


def choose_level(args: Arguments) -> tuple[str, str]:
    """Return the level that runs these arguments ("c++" or "python") and why."""
    reason = why_python(args)
    return ("c++", "supports these arguments") if reason is None else ("python", reason)


@functools.cache
def unavailable() -> str | None:
    """Say why this machine has no C++ level, with one warning; None if it has."""
    try:
        native.library()
    except native.Unavailable as reason:
        warn(f"antiphase runs its slower Python level: {reason}")
        return str(reason)
    return None
