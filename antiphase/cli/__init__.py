"""The `antiphase` command: one file per command, assembled in `app`."""

from antiphase.cli.app import app, main

__all__ = ["app", "main"]
