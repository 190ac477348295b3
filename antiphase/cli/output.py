"""What commands print: results on stdout, progress on stderr; tables that fit the terminal.

A table that is too wide is wrapped where it has text, then split into blocks of columns. Digits are
never cut off. Without a terminal there is no limit to the width, unless COLUMNS sets one.
"""

import copy
import dataclasses
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

UNLIMITED = 100_000  # columns
READABLE = 24  # a column of text is not wrapped to less than this


class Output:
    """Where a command prints.

    Args:
        quiet: print results only: no progress, notes, titles or borders.
        as_json: print nothing on stdout but what is given to `json`.

    Attributes:
        progress: a console on stderr, for progress bars and status lines; silent if quiet.

    """

    def __init__(self, *, quiet: bool = False, as_json: bool = False) -> None:
        self.quiet, self.as_json = quiet, as_json
        limited = sys.stdout.isatty() or "COLUMNS" in os.environ
        self.console = Console(width=None if limited else UNLIMITED, quiet=as_json)
        self.progress = Console(stderr=True, quiet=quiet)

    def note(self, text: str) -> None:
        """Print what explains a result; silent if quiet."""
        if not self.quiet:
            self.line(text)

    def line(self, text: str | Text) -> None:
        """Print a line of a result; the terminal wraps it."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

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
            self.progress.print(f"wrote {path}", highlight=False, markup=False, soft_wrap=True)
        else:
            self.line(str(path) if self.quiet else f"wrote {path}")

    def json(self, content: Any) -> None:
        """Print a result as JSON, if that was requested; NaN and infinities are null."""
        if self.as_json:
            typer.echo(json.dumps(_plain(content), indent=1, ensure_ascii=False))


def listing(output: Output, entries: Mapping[str, str], *names: str) -> None:
    """Print a listing: names and what they mean; as JSON, a list of objects."""
    output.json([dict(zip(names, entry, strict=True)) for entry in entries.items()])
    output.fields(entries)


def records(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[dict[str, str]]:
    """Return the rows of a table as one object per row; a column without a name is `name`."""
    return [dict(zip((c or "name" for c in columns), row, strict=True)) for row in rows]


def fit(table: Table, console: Console) -> Iterator[Table]:
    """Yield a table, or blocks of its columns that repeat the first column and fit the console."""
    if _natural_width(table, console) <= console.width or len(table.columns) < 2:
        yield table
        return
    first, *others = table.columns
    blocks: list[list[Column]] = []
    for column in others:
        if blocks and _narrowest_width(table, [first, *blocks[-1], column], console) <= (
            console.width
        ):
            blocks[-1].append(column)
        else:
            blocks.append([column])
    for number, block in enumerate(blocks):
        part = _part(table, [first, *block])
        part.title = table.title if number == 0 else None
        part.caption = table.caption if number == len(blocks) - 1 else None
        _wrap(part, console)
        yield part


def _wrap(table: Table, console: Console) -> None:
    """Give each column its narrowest width, and columns of text what is left over."""
    left = console.width - _narrowest_width(table, table.columns, console)
    for column in table.columns:
        narrow, natural = _narrowest(column), _natural(column)
        extra = max(0, min(left, natural - narrow))
        column.width, column.no_wrap, column.overflow = narrow + extra, False, "fold"
        left -= extra


def _narrowest_width(table: Table, columns: Sequence[Column], console: Console) -> int:
    part = _part(table, columns)
    for column in part.columns:
        column.width = _narrowest(column)
    return _natural_width(part, console)


def _natural_width(table: Table, console: Console) -> int:
    return Measurement.get(console, console.options.update(max_width=UNLIMITED), table).maximum


def _narrowest(column: Column) -> int:
    """Return the width that a column needs: numbers are not wrapped, text is, between words."""
    natural = _natural(column)
    if column.justify == "right" or column.no_wrap:
        return natural
    longest_word = max(
        (cell_len(word) for cell in _cells(column) for word in cell.split()), default=1
    )
    return max(longest_word, min(natural, READABLE))


def _natural(column: Column) -> int:
    lines = (line for cell in _cells(column) for line in cell.splitlines())
    return max((cell_len(line) for line in lines), default=1) or 1


def _cells(column: Column) -> list[str]:
    return [_text(cell) for cell in (column.header, *column.cells)]


def _text(cell: Any) -> str:
    return cell.plain if isinstance(cell, Text) else Text.from_markup(str(cell)).plain


def _part(table: Table, columns: Sequence[Column]) -> Table:
    part = copy.copy(table)
    part.columns = [copy.copy(column) for column in columns]
    for index, column in enumerate(part.columns):
        column._index = index
    return part


def _undecorated(table: Table) -> Table:
    plain = _part(table, table.columns)
    plain.title = plain.caption = plain.box = None
    plain.padding, plain.pad_edge = (0, 1), False
    return plain


def _is_number(text: str) -> bool:
    """Return whether a cell is a number, an interval, a ratio or a dash."""
    return text in ("", "-") or text.lstrip("+-").startswith(tuple("0123456789")) or text == "nan"


def _plain(content: Any) -> Any:
    """Return content as JSON can hold it."""
    if dataclasses.is_dataclass(content) and not isinstance(content, type):
        content = dataclasses.asdict(content)
    if isinstance(content, Mapping):
        return {str(key): _plain(value) for key, value in content.items()}
    if isinstance(content, (list, tuple, set, range)):
        return [_plain(value) for value in content]
    if isinstance(content, float):
        return content if math.isfinite(content) else None
    if content is None or isinstance(content, (bool, int, str)):
        return content
    if hasattr(content, "tolist"):  # arrays and scalars of numpy and torch
        return _plain(content.tolist())
    return str(content)
