"""An analysis on the terminal."""

from rich.table import Table

from antiphase.lab.analyze import Analysis


def head_table(analysis: Analysis, title: str) -> Table:
    """Return every metric by layer and head; of many heads, the means of each layer."""
    rows = analysis.heads
    many = len(rows) > 32
    if many:
        rows = [_mean(rows, layer) for layer in sorted({row["layer"] for row in rows})]
    names = [name for name in rows[0] if name not in ("layer", "head")]
    where = "mean of each layer's heads" if many else "by layer and head"
    table = Table("", *names, title=f"{title} ({analysis.model}), {where}", title_justify="left")
    for row in rows:
        place = f"{row['layer']:.0f}" if many else f"{row['layer']:.0f}.{row['head']:.0f}"
        table.add_row(place, *(f"{row[name]:.3g}" for name in names))
    return table


def layer_table(analysis: Analysis) -> Table:
    """Return what is known by layer."""
    names = [name for name in analysis.layers[0] if name != "layer"]
    table = Table("layer", *names)
    for row in analysis.layers:
        table.add_row(f"{row['layer']:.0f}", *(f"{row[name]:.3g}" for name in names))
    return table


def _mean(rows: list[dict[str, float]], layer: float) -> dict[str, float]:
    mine = [row for row in rows if row["layer"] == layer]
    return {name: sum(row[name] for row in mine) / len(mine) for name in mine[0]}
