"""`antiphase maps`: a figure of the attention maps of two models on one sequence."""

from pathlib import Path
from typing import Annotated

import typer

from antiphase.cli.options import (
    PICTURES,
    Quiet,
    require_at_least,
    require_output_file,
    require_packages,
)
from antiphase.cli.output import Output


def maps(
    out: Annotated[Path, typer.Option(help="file of the figure (PNG, SVG, PDF)")],
    standard: Annotated[
        str, typer.Option(help="model with standard attention: a shipped model, folder or hub name")
    ] = "standard",
    differential: Annotated[
        str, typer.Option(help="model with differential attention, of the same task")
    ] = "diff_v1",
    example: Annotated[int, typer.Option(help="index of the example")] = 0,
    quiet: Quiet = False,
) -> None:
    """Draw standard attention beside A1, A2 and their difference, with the answer marked."""
    require_output_file("--out", out, PICTURES)
    require_at_least(0, example=example)
    require_packages("the figure", "plots", "matplotlib")
    from antiphase.models.locate import locate_model

    for name in (standard, differential):
        locate_model(name)  # a wrong name is found before any work
    from antiphase.analysis.map_figure import draw_map_figure

    output = Output(quiet=quiet)
    with output.progress.status("drawing"):
        path = draw_map_figure(
            out, standard=standard, differential=differential, example=example, seed=0
        )
    output.wrote(path)
