"""Options that several commands share, and the validation of their values.

Commands validate before any work begins. Every check raises ValueError and says what was given and
what is allowed.
"""

import importlib.util
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from antiphase.options import nearest

PICTURES = (".png", ".svg", ".pdf")

Quiet = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="print results only: no progress, notes or table borders"),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="print the results as JSON, and nothing else, on stdout")
]


def set_option(what: str) -> Any:
    """Return the option `--set NAME=VALUE`, which can be repeated."""
    return typer.Option(
        "--set", metavar="NAME=VALUE", help=f"set {what}; repeat the option for several"
    )


def list_option(what: str) -> Any:
    """Return the option `--list`."""
    return typer.Option("--list", help=f"list {what} and exit")


def require_at_least(least: float, **values: float | None) -> None:
    """Raise unless every option's value is at least `least`; None means not given."""
    for name, value in values.items():
        if value is not None and value < least:
            raise ValueError(f"--{_dashed(name)}: got {value}, expected at least {least}")


def require_above(least: float, **values: float) -> None:
    """Raise unless every option's value is above `least`."""
    for name, value in values.items():
        if not value > least:
            raise ValueError(f"--{_dashed(name)}: got {value:g}, expected a number above {least:g}")


def require_one_of(allowed: Iterable[str], **values: str) -> None:
    """Raise unless every option's value is one of the allowed ones."""
    names = list(allowed)
    for name, value in values.items():
        if value not in names:
            raise ValueError(
                f"--{_dashed(name)}: got {value!r}, allowed are {', '.join(names)}"
                f"{nearest(value, names)}"
            )


def require_output_file(option: str, path: Path | None, suffixes: Sequence[str] = ()) -> None:
    """Raise unless a file can be written there, with one of the suffixes if any are given."""
    if path is None:
        return
    if suffixes and path.suffix.lower() not in suffixes:
        *first, last = suffixes
        allowed = f"{', '.join(first)} or {last}" if first else last
        raise ValueError(f"{option}: got {path}, expected a name that ends in {allowed}")
    if path.is_dir():
        raise ValueError(f"{option}: got {path}, which is a folder; give the name of a file")
    _require_writable(option, path)


def require_output_folder(option: str, path: Path | None) -> None:
    """Raise unless a folder exists or can be created there."""
    if path is None:
        return
    if path.exists() and not path.is_dir():
        raise ValueError(f"{option}: got {path}, which is a file; give the name of a folder")
    _require_writable(option, path)


def require_sources(sources: list[str] | None) -> None:
    """Raise unless every source of text exists: `--text` is read late in a command."""
    from antiphase.tasks.text.corpus import require_sources as find

    try:
        find(sources or [])
    except ValueError as error:
        raise ValueError(f"--text: {error}") from error


def require_packages(purpose: str, extra: str, *names: str) -> None:
    """Raise unless the optional packages are installed."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        needed = " and ".join(missing)
        raise ValueError(f"{purpose} needs {needed}; pip install 'antiphase[{extra}]'")


def _require_writable(option: str, path: Path) -> None:
    existing = next(p for p in (path, *path.absolute().parents) if p.exists())
    if not existing.is_dir() and existing != path:
        raise ValueError(f"{option}: got {path}, but {existing} is a file, not a folder")
    if not os.access(existing, os.W_OK):
        raise ValueError(f"{option}: got {path}, but {existing} cannot be written to")


def _dashed(name: str) -> str:
    return name.replace("_", "-")
