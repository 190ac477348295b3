"""How commands refuse: one line on the error stream, and exit code 2."""

from typing import NoReturn

import typer


def fail(message: str) -> NoReturn:
    """End the command with a message."""
    typer.echo(f"antiphase: {message}", err=True)
    raise typer.Exit(2)
