"""`antiphase import-weights`: convert weights between layouts."""

from pathlib import Path
from typing import Annotated, Optional

import typer

from antiphase.cli.options import Quiet, require_output_folder
from antiphase.cli.output import Output


def import_weights(
    source: Annotated[
        Path, typer.Argument(help="folder of a DiffLlama, official or Antiphase model")
    ],
    target: Annotated[Path, typer.Argument(help="folder to write: a new or an empty one")],
    layout: Annotated[
        Optional[str],
        typer.Option(help="diffllama, official or antiphase; default: from config.json"),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Convert weights: DiffLlama or official to Antiphase, or Antiphase (diff_v1) to DiffLlama."""
    if not source.is_dir():
        raise ValueError(f"source: got {source}, which is no folder")
    require_output_folder("target", target)
    from transformers.utils.logging import disable_progress_bar

    from antiphase.models.weights import convert

    disable_progress_bar()  # of loading and saving, which take seconds
    output = Output(quiet=quiet)
    model = convert(source, target, layout)
    output.wrote(target)
    output.note(f"{type(model).__name__}, {model.num_parameters():,} parameters")
