"""The `antiphase` command."""

from antiphase.cli.commands import app, main

__all__ = ["app", "main"]
