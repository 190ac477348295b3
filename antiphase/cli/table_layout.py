"""Tables that fit the terminal and keep their digits.

A table that is too wide is wrapped where it has text, then split into blocks of columns. A number
is never cut off.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

UNLIMITED = 100_000  # columns
READABLE = 24  # text is not wrapped to a narrower column


def fit(table: Table, console: Console) -> Iterator[Table]:
    """Yield a table, or blocks of its columns that repeat the first column and fit the console.

    Text and headings are wrapped first. Intervals move below their mean if that saves blocks.
    """
    if _measured(table, console) <= console.width or len(table.columns) < 2:
        yield table
        return
    plans = [_blocks(table, console, stacked) for stacked in (False, True)]
    stacked = len(plans[True]) < len(plans[False])
    blocks = plans[stacked]
    for number, block in enumerate(blocks):
        columns = [0, *block]
        widths = {i: _narrowest(table.columns[i], stacked) for i in columns}
        left = console.width - _measured(part_of(table, widths), console)
        for i in columns:  # what is left over goes to text and headings
            extra = max(0, min(left, _natural(table.columns[i]) - widths[i]))
            widths[i], left = widths[i] + extra, left - extra
        part = part_of(table, widths)
        part.title = table.title if number == 0 else None
        part.caption = table.caption if number == len(blocks) - 1 else None
        yield part


def _blocks(table: Table, console: Console, stacked: bool) -> list[list[int]]:
    """Return as many columns per block as fit beside the first column."""
    blocks: list[list[int]] = []
    for i in range(1, len(table.columns)):
        tried = [0, *(blocks[-1] if blocks else []), i]
        widths = {c: _narrowest(table.columns[c], stacked) for c in tried}
        if blocks and _measured(part_of(table, widths), console) <= console.width:
            blocks[-1].append(i)
        else:
            blocks.append([i])
    return blocks


def part_of(table: Table, widths: Mapping[int, int | None]) -> Table:
    """Return some columns of a table with given widths; numbers too wide for theirs are stacked."""
    part = copy.copy(table)
    part.columns, part.rows = [], []
    contents = []
    for i, width in widths.items():
        column = table.columns[i]
        cells = list(column.cells)
        if (
            column.justify == "right"
            and width is not None
            and any(_width(c) > width for c in cells)
        ):
            cells = [_stack(cell) for cell in cells]
        part.add_column(
            column.header,
            justify=column.justify,
            style=column.style,
            width=width,
            no_wrap=column.no_wrap and width is None,
            overflow="fold",
        )
        contents.append(cells)
    for i, row in enumerate(table.rows):
        part.add_row(
            *(cells[i] for cells in contents), style=row.style, end_section=row.end_section
        )
    return part


def _measured(table: Table, console: Console) -> int:
    """Return the width of a table that nothing limits."""
    return Measurement.get(console, console.options.update(max_width=UNLIMITED), table).maximum


def _narrowest(column: Column, stacked: bool) -> int:
    """Return the width that a column needs: text is wrapped between words, numbers are not."""
    natural = _natural(column)
    if column.no_wrap:
        return natural
    if column.justify == "right":
        cells = [_stack(cell) if stacked else cell for cell in column.cells]
        return max([_longest_word([column.header]), *map(_width, cells)])
    return max(_longest_word([column.header, *column.cells]), min(natural, READABLE))


def _natural(column: Column) -> int:
    return max(1, *map(_width, (column.header, *column.cells)))


def _width(cell: Any) -> int:
    return max((cell_len(line) for line in _text(cell).splitlines()), default=0)


def _longest_word(cells: Sequence[Any]) -> int:
    return max((cell_len(word) for cell in cells for word in _text(cell).split()), default=1)


def _stack(cell: Any) -> Any:
    """Return `mean [low, high]` with its interval on a line of its own."""
    text = _text(cell)
    for bracket in (" [", " (", " ±"):
        mean, found, interval = text.partition(bracket)
        if found:
            return Text(f"{mean}\n{found.strip()}{interval}")
    return cell


def _text(cell: Any) -> str:
    return cell.plain if isinstance(cell, Text) else str(cell)
