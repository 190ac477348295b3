"""Tables in Markdown, for cards, reports and pages."""

from collections.abc import Sequence


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows of cells under headings; a `|` in a cell is escaped.

    Args:
        columns: the headings.
        rows: cells, as many per row as there are headings.

    Returns:
        The lines of the table, without a line break at the end.
    """
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
    )
