"""An `Analysis` as terminal tables: one row per metric, one column per head or layer."""

from collections.abc import Iterator

from rich.table import Table

from antiphase.analysis.analyze import Analysis

MANY_HEADS = 32  # with more heads, the tables show the means of each layer
DIGITS = 3
VALUE_WIDTH = 9  # of the widest number, -1.23e-05
PADDING = 3  # of a column: a space on each side and a line
LEGEND = (
    "R: positions of the answer, S: first token (sink), I: other visible positions. A1, A2: signal "
    "and noise map. null: A2 of another head. CMRR: common-mode rejection ratio."
)


def tables(analysis: Analysis, title: str, width: int = 80) -> Iterator[Table]:
    """Return tables of all metrics by head, then by layer.

    Args:
        analysis: what `analyze` returned.
        title: name of the model, for the first table's title.
        width: columns of the terminal. Tables that would be wider are split, so that no number is
            cut off.
    """
    heads = analysis.heads
    name = title if title == analysis.model else f"{title} ({analysis.model})"
    if len(heads) > MANY_HEADS:
        layers = sorted({row["layer"] for row in heads})
        means = {f"{layer:.0f}": _mean(heads, layer) for layer in layers}
        yield from _split(f"{name}: means over the heads of each layer", means, width)
    else:
        by_head = {f"{row['layer']:.0f}.{row['head']:.0f}": row for row in heads}
        yield from _split(f"{name}: layer.head", by_head, width)
    last = {f"{row['layer']:.0f}": row for row in analysis.layers}
    *others, final = _split(f"{name}: layer", last, width)
    final.caption, final.caption_justify = LEGEND, "left"
    yield from [*others, final]


def _split(title: str, columns: dict[str, dict[str, float]], width: int) -> list[Table]:
    """Return the columns in as many tables as the width requires."""
    metrics = [name for name in next(iter(columns.values())) if name not in ("layer", "head")]
    names = max(map(len, metrics))
    fitting = max(1, (width - names - PADDING - 1) // (VALUE_WIDTH + PADDING))
    places = list(columns)
    found = []
    for start in range(0, len(places), fitting):
        part = places[start : start + fitting]
        table = Table(title=title if start == 0 else None, title_justify="left")
        table.add_column("metric", no_wrap=True, min_width=names)
        for place in part:
            table.add_column(place, justify="right", no_wrap=True)
        for metric in metrics:
            values = (f"{columns[place][metric]:.{DIGITS}g}" for place in part)
            table.add_row(metric, *values)
        found.append(table)
    return found


def _mean(rows: list[dict[str, float]], layer: float) -> dict[str, float]:
    mine = [row for row in rows if row["layer"] == layer]
    return {name: sum(row[name] for row in mine) / len(mine) for name in mine[0]}
