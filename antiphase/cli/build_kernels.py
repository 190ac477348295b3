"""`antiphase build-kernels`: compile the C++ kernels ahead of their first use."""

from typing import Annotated

import typer

from antiphase.cli.options import Quiet
from antiphase.cli.output import Output


def build_kernels(
    force: Annotated[
        bool, typer.Option("--force", help="test again and, unless prebuilt, build again")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Build the C++ kernels, unless they came prebuilt, and test them on this machine."""
    from antiphase.ops.fused_cpu import native

    output = Output(quiet=quiet)
    try:
        library = native.prepare(force=force)
    except native.Unavailable as reason:
        raise ValueError(f"the kernels cannot be used: {reason}") from reason
    speeds = ", ".join(f"{name} {rate:.0f} GFLOP/s" for name, rate in library.rates.items())
    output.line(str(library.path) if quiet else f"{library.path} ({library.origin}): {speeds}")
