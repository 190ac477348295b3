"""The `antiphase` command, assembled from one file per command.

Importing a command's file must stay cheap: `--help` and the listings import all of them. Whatever
needs PyTorch is imported inside the command.
"""

from typing import Annotated

import typer

from antiphase import __version__
from antiphase.cli.analyze import analyze
from antiphase.cli.bench import bench
from antiphase.cli.build_kernels import build_kernels
from antiphase.cli.compare import compare
from antiphase.cli.data import data
from antiphase.cli.doctor import doctor
from antiphase.cli.errors import CommandGroup
from antiphase.cli.evaluate import evaluate
from antiphase.cli.explore import explore
from antiphase.cli.generate import generate
from antiphase.cli.import_weights import import_weights
from antiphase.cli.lab import lab
from antiphase.cli.maps import maps
from antiphase.cli.serve import serve
from antiphase.cli.show import show
from antiphase.cli.task import task
from antiphase.cli.train import train
from antiphase.cli.unchain import unchain

app = typer.Typer(
    cls=CommandGroup,
    help="Noise-cancelling (differential) attention for PyTorch.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"antiphase {__version__}")
        raise typer.Exit


@app.callback()
def _global_options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="print the version"),
    ] = False,
    debug: Annotated[
        bool,
        typer.Option("--debug", envvar="ANTIPHASE_DEBUG", help="show the traceback of an error"),
    ] = False,
) -> None:
    """Take the options that come before the command; `CommandGroup` reads `debug`."""


app.command()(show)
app.command()(generate)
app.command()(serve)
app.command()(task)
app.command()(train)
app.command()(compare)
app.command()(analyze)
app.command()(maps)
app.command()(explore)
app.command()(unchain)
app.command()(evaluate)
app.command("import-weights")(import_weights)
app.command()(doctor)
app.command("build-kernels")(build_kernels)
app.add_typer(data, name="data")
app.add_typer(bench, name="bench")
app.add_typer(lab, name="lab")


def main() -> None:
    """Run the command line."""
    app()
