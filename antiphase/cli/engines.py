"""`--engine`, `--address` and `--results-url`: where many runs are trained."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from antiphase.cli.options import require_one_of, require_packages
from antiphase.cli.output import Output

if TYPE_CHECKING:
    from antiphase.experiments.engine import Engine
    from antiphase.experiments.results_copy import ResultsCopy

ENGINES = ("local", "ray")

EngineName = Annotated[
    str, typer.Option("--engine", help="where to train: local (this machine's cores) or ray")
]
Address = Annotated[
    Optional[str],
    typer.Option(help="of a Ray cluster, or auto; default: Ray on this machine"),
]
ResultsUrl = Annotated[
    Optional[str],
    typer.Option(help="copy finished results there, too, e.g. s3://bucket/study (fsspec)"),
]


def require_engine_options(engine: str, address: str | None) -> None:
    """Raise unless the options of an engine go together."""
    require_one_of(ENGINES, engine=engine)
    if address is not None and engine != "ray":
        raise ValueError(f"--address: is that of a Ray cluster, but --engine is {engine}")
    if engine == "ray":
        require_packages("--engine ray", "cluster", "ray")


def open_engine(
    engine: str, address: str | None, results_url: str | None, output: Output
) -> "tuple[Engine, ResultsCopy | None]":
    """Return the engine, and the copy of its results if a URL was given."""
    from antiphase.experiments.local_pool import LocalEngine
    from antiphase.experiments.results_copy import CopyingEngine, ResultsCopy

    copy = None if results_url is None else ResultsCopy(results_url, output.warnings)
    chosen: Engine
    if engine == "ray":
        from antiphase.experiments.ray_engine import RayEngine

        chosen = RayEngine(address)
    else:
        chosen = LocalEngine()
    return (CopyingEngine(chosen, copy) if copy else chosen), copy


def copy_study(copy: "ResultsCopy | None", folder: Path, output: Output) -> None:
    """Copy what is missing at the URL of the results, if one was given."""
    if copy is not None and copy.copy_study(folder):
        output.progress.print(f"copied the results to {copy.url}", highlight=False, soft_wrap=True)
