"""`antiphase build-kernels`: compile the C++ kernels ahead of their first use."""

from typing import Annotated

import typer

from antiphase.cli.options import Quiet
from antiphase.cli.output import Output


def build_kernels(
    force: Annotated[bool, typer.Option("--force", help="build even if they exist")] = False,
    quiet: Quiet = False,
) -> None:
    """Build the C++ kernels ahead of their first use, and test them on this machine."""
    from antiphase.ops.fused_cpu import native

    output = Output(quiet=quiet)
    try:
        path = native.build(force=force)
        rates = native.library().rates
    except native.Unavailable as reason:
        raise ValueError(f"the kernels could not be built: {reason}") from reason
    speeds = ", ".join(f"{name} {rate:.0f} GFLOP/s" for name, rate in rates.items())
    output.line(str(path) if quiet else f"{path}: {speeds}")
