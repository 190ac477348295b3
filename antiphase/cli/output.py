"""What commands print: results on stdout, progress on stderr, or JSON alone.

Without a terminal there is no limit to the width of a table, unless COLUMNS sets one.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from antiphase.cli.table_layout import UNLIMITED, fit, part_of
from antiphase.json_values import json_ready


class Output:
    """Where a command prints.

    Args:
        quiet: print results only: no progress, notes, titles or borders.
        as_json: print nothing on stdout but what is given to `json`.

    Attributes:
        progress: a console on stderr, for progress bars and status lines; silent if quiet.
        warnings: a console on stderr, for what went wrong without ending the command.
    """

    def __init__(self, *, quiet: bool = False, as_json: bool = False) -> None:
        self.quiet, self.as_json = quiet, as_json
        limited = sys.stdout.isatty() or "COLUMNS" in os.environ
        plain: dict[str, Any] = {"markup": False, "emoji": False}  # names may have brackets, colons
        self.console = Console(width=None if limited else UNLIMITED, quiet=as_json, **plain)
        self.progress = Console(stderr=True, quiet=quiet, **plain)
        # the same console where it can be, so that a live display is not torn
        self.warnings = Console(stderr=True, **plain) if quiet else self.progress

    def note(self, text: str) -> None:
        """Print what explains a result; silent if quiet."""
        if not self.quiet:
            self.line(text)

    def line(self, text: str | Text) -> None:
        """Print a line of a result; the terminal wraps it."""
        self.console.print(text, highlight=False, soft_wrap=True)

    def fields(self, fields: Mapping[str, str]) -> None:
        """Print names and values, one line each."""
        width = max(map(len, fields))
        for name, value in fields.items():
            self.line(Text.assemble((name.ljust(width), "bold"), "  ", value))

    def rows(
        self,
        columns: Sequence[str],
        rows: Sequence[Sequence[str]],
        *,
        title: str | None = None,
        emphasis: str | None = None,
    ) -> None:
        """Print rows as a table; the row whose first cell is `emphasis` is bold."""
        table = Table(title=title, title_justify="left")
        for i, name in enumerate(columns):
            numeric = i > 0 and all(_is_number(row[i]) for row in rows)
            table.add_column(name, justify="right" if numeric else "left")
        for row in rows:
            table.add_row(*map(Text, row), style="bold" if row[0] == emphasis else None)
        self.table(table)

    def table(self, table: Table) -> None:
        """Print a table so that it fits; undecorated if quiet."""
        if self.quiet:
            table = _undecorated(table)
        for block in fit(table, self.console):
            self.console.print(block)

    def wrote(self, path: Path) -> None:
        """Print which file or folder was written."""
        if self.as_json:
            self.progress.print(f"wrote {path}", highlight=False, soft_wrap=True)
        else:
            self.line(str(path) if self.quiet else f"wrote {path}")

    def json(self, content: Any) -> None:
        """Print a result as JSON, if that was requested; NaN and infinities are null."""
        if self.as_json:
            typer.echo(json.dumps(json_ready(content), indent=1, ensure_ascii=False))


def listing(output: Output, entries: Mapping[str, str], *names: str) -> None:
    """Print a listing: names and what they mean; as JSON, a list of objects."""
    output.json([dict(zip(names, entry, strict=True)) for entry in entries.items()])
    output.fields(entries)


def records(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[dict[str, str]]:
    """Return the rows of a table as one object per row; a column without a name is `name`."""
    return [dict(zip((c or "name" for c in columns), row, strict=True)) for row in rows]


def _undecorated(table: Table) -> Table:
    plain = part_of(table, dict.fromkeys(range(len(table.columns))))
    plain.title = plain.caption = plain.box = None
    plain.padding, plain.pad_edge = (0, 1), False
    return plain


def _is_number(text: str) -> bool:
    """Return whether a cell is a number, an interval, a ratio or a dash."""
    return text in ("", "-") or text.lstrip("+-").startswith(tuple("0123456789")) or text == "nan"
