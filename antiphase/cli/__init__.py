"""The `antiphase` command."""

from antiphase.cli.app import app, main

__all__ = ["app", "main"]
