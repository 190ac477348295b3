"""`antiphase build-kernels`: compile the C++ kernels ahead of their first use."""

from pathlib import Path
from typing import Annotated, Optional

import typer

from antiphase.cli.options import Quiet, require_packages
from antiphase.cli.output import Output


def build_kernels(
    force: Annotated[
        bool, typer.Option("--force", help="test again and, unless prebuilt, build again")
    ] = False,
    hub: Annotated[
        Optional[Path],
        typer.Option(help="write the Triton kernels here, as Hugging Face's `kernels` loads them"),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Build the C++ kernels, unless they came prebuilt, and test them on this machine.

    With --hub: write the Triton kernels as a repository for the package `kernels` instead.
    """
    output = Output(quiet=quiet)
    if hub is not None:
        require_packages("--hub", "gpu", "triton")
        from antiphase.ops.triton.hub_layout import write_kernel_repository

        for folder in write_kernel_repository(hub):
            output.wrote(folder)
        return
    from antiphase.ops.fused_cpu import native

    try:
        library = native.prepare(force=force)
    except native.Unavailable as reason:
        raise ValueError(f"the kernels cannot be used: {reason}") from reason
    speeds = ", ".join(f"{name} {rate:.0f} GFLOP/s" for name, rate in library.rates.items())
    output.line(str(library.path) if quiet else f"{library.path} ({library.origin}): {speeds}")
