"""The choice between the two levels of `fused_cpu`, C++ or Python, and the reason for it.

The C++ level supports the common cases of fp32, bf16 and fp16; the Python level supports all.
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


def unsupported_by_cpp(args: Arguments) -> str | None:
    """Say why the C++ level has no code for these arguments; None if it has."""
    if args.q1.dtype not in abi.DTYPES:
        return f"{args.q1.dtype} is not supported"
    if args.mask is not None:
        return "masks are not supported"
    widths = [args.q1.shape[-1], args.v.shape[-1]]
    if args.q2 is not None:
        widths.append(args.q2.shape[-1])
    if any(width % 8 for width in widths):
        return f"widths {widths} are not multiples of 8"
    if args.q2 is not None and args.k2 is not None:
        noise_heads = (args.q2.shape[1], args.k2.shape[1])
        if noise_heads != (args.q1.shape[1], args.k1.shape[1]):
            return "noise heads differ from signal heads"
    return None


def why_python(args: Arguments) -> str | None:
    """Say why the Python level runs these arguments now; None if the C++ level does."""
    if _python_only.get():
        return "requested by python_level()"
    return unsupported_by_cpp(args) or _unavailable()


def choose_level(args: Arguments) -> tuple[str, str]:
    """Return the level that runs these arguments ("c++" or "python") and why."""
    reason = why_python(args)
    return ("c++", "supports these arguments") if reason is None else ("python", reason)


@functools.cache
def _unavailable() -> str | None:
    """Say why this machine has no C++ level, with one warning; None if it has."""
    try:
        native.library()
    except native.Unavailable as reason:
        warn(f"antiphase runs its slower Python level: {reason}")
        return str(reason)
    return None
