"""An analysis on the terminal: a row a metric, a column a head or a layer, a few at a time."""

from collections.abc import Iterator

from rich.table import Table

from antiphase.analysis.analyze import Analysis

WIDE = 8  # columns of a table
MANY = 32  # heads; of more, the means of each layer


def tables(analysis: Analysis, title: str) -> Iterator[Table]:
    """Return every metric by head, then by layer."""
    heads = analysis.heads
    name = f"{title} ({analysis.model})"
    if len(heads) > MANY:
        layers = sorted({row["layer"] for row in heads})
        means = {f"{layer:.0f}": _mean(heads, layer) for layer in layers}
        yield from _blocks(f"{name}, layers (means of their heads)", means)
    else:
        by_head = {f"{row['layer']:.0f}.{row['head']:.0f}": row for row in heads}
        yield from _blocks(f"{name}, heads (layer.head)", by_head)
    yield from _blocks("layers", {f"{row['layer']:.0f}": row for row in analysis.layers})


def _blocks(title: str, columns: dict[str, dict[str, float]]) -> Iterator[Table]:
    places = list(columns)
    for start in range(0, len(places), WIDE):
        some = places[start : start + WIDE]
        table = Table(title if start == 0 else "", *some)
        for metric in columns[some[0]]:
            if metric not in ("layer", "head"):
                table.add_row(metric, *(f"{columns[place][metric]:.3g}" for place in some))
        yield table


def _mean(rows: list[dict[str, float]], layer: float) -> dict[str, float]:
    mine = [row for row in rows if row["layer"] == layer]
    return {name: sum(row[name] for row in mine) / len(mine) for name in mine[0]}
