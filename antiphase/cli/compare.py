"""`antiphase compare`: finished runs side by side."""

from pathlib import Path
from typing import Annotated, Optional

import typer

from antiphase.cli.options import PICTURES, AsJson, Quiet, require_output_file, require_packages
from antiphase.cli.output import Output


def compare(
    runs: Annotated[list[Path], typer.Argument(help="run folders, or folders of sweeps")],
    plot: Annotated[
        Optional[Path], typer.Option(help="plot the learning curves to this file (PNG, SVG, PDF)")
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Compare finished runs: parameters, speed, and scores with 95% intervals over seeds."""
    require_output_file("--plot", plot, PICTURES)
    if plot is not None:
        require_packages("--plot", "plots", "matplotlib")
    from antiphase.analysis.compare_runs import (
        compare_runs,
        comparison_rows,
        finished_runs,
        run_folders,
    )
    from antiphase.training.run_card import draw_curves

    output = Output(quiet=quiet, as_json=as_json)
    finished, others = finished_runs(run_folders(runs))
    for folder, reason in others.items():
        typer.echo(f"antiphase: {folder}: {reason}; left out", err=True)
    if not finished:
        raise ValueError("compare: no finished run among these folders")
    groups = compare_runs(finished)
    output.rows(*comparison_rows(groups))
    output.json(groups)
    if plot is not None:
        plot.parent.mkdir(parents=True, exist_ok=True)
        names = [folder.name for folder in finished]
        unique = len(set(names)) == len(names)
        draw_curves({f.name if unique else str(f): f for f in finished}, plot)
        output.wrote(plot)
