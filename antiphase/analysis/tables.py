"""An `Analysis` as terminal tables: one row per metric, one column per head or layer."""

from collections.abc import Iterator, Mapping

from rich.table import Table

from antiphase.analysis.analyze import Analysis

MANY_HEADS = 32  # with more heads, the tables show the means of each layer
FAIR_NULL = 4  # heads of a layer, for A2 of another head to be a fair null
DIGITS = 3
VALUE_WIDTH = 9  # of the widest number, -1.23e-05
PADDING = 3  # of a column: a space on each side and a line
NOTHING = "-"
LEGEND = (
    "R: positions of the answer, S: first token (sink), own: the query itself, I: other visible "
    "positions. A1, A2: signal and noise map, A: the map that is applied to V. corr: correlation "
    "of log A1 and log A2; its nulls take A2 of another head or example. CMRR: common-mode "
    "rejection ratio. Means over sequences; of optimal lam and signal gain medians."
)


def tables(analysis: Analysis, title: str, width: int = 80) -> Iterator[Table]:
    """Return tables of all metrics by head, over the retrieval heads, and by layer.

    Args:
        analysis: what `analyze` returned.
        title: name of the model, for the titles.
        width: columns of the terminal. Tables that would be wider are split, so that no number is
            cut off.
    """
    name = title if title == analysis.model else f"{title} ({analysis.model})"
    yield from _by_head(analysis, name, width)
    if analysis.retrieval is not None:
        yield from _retrieval(analysis, name, width)
    if analysis.branches:
        columns = {f"{row['layer']:.0f}": row for row in analysis.branches}
        yield from _split(f"{name}: RMS of branches and stream", columns, width)
    columns = {f"{row['layer']:.0f}": row for row in analysis.layers}
    *others, final = _split(f"{name}: layer", columns, width)
    final.caption, final.caption_justify = _legend(analysis), "left"
    yield from [*others, final]


def _by_head(analysis: Analysis, name: str, width: int) -> list[Table]:
    heads = analysis.heads
    if len(heads) > MANY_HEADS:
        layers = sorted({row["layer"] for row in heads})
        means = {f"{layer:.0f}": _mean(heads, layer) for layer in layers}
        return _split(f"{name}: means over the heads of each layer", means, width)
    columns = {}
    for row in heads:
        mark = "*" if analysis.is_retrieval_head(row["layer"], row["head"]) else ""
        columns[f"{row['layer']:.0f}.{row['head']:.0f}{mark}"] = row
    marked = "" if analysis.retrieval is None else " (* retrieval head)"
    return _split(f"{name}: layer.head{marked}", columns, width)


def _retrieval(analysis: Analysis, name: str, width: int) -> list[Table]:
    """Return the means over the retrieval heads of each layer, and of the model."""
    assert analysis.retrieval is not None
    masks = analysis.retrieval.layers
    columns: dict[str, Mapping[str, float | str]] = {}
    for layer, (mask, means) in enumerate(zip(masks, analysis.retrieval_means, strict=False)):
        count = {"number": f"{int(mask.sum())} of {len(mask)}"}
        columns[str(layer)] = count | dict(means or {})
    total = sum(int(mask.sum()) for mask in masks)
    every = {"number": f"{total} of {sum(map(len, masks))}"}
    columns["all"] = every | dict(analysis.retrieval_means[-1] or {})
    found = _split(f"{name}: means over the retrieval heads of each layer", columns, width)
    found[-1].caption_justify = "left"
    found[-1].caption = (
        "Retrieval heads, chosen on validation examples: mass on R above half of the largest, "
        f"{analysis.retrieval.largest:.{DIGITS}g} (uniform attention: "
        f"{analysis.retrieval.uniform:.{DIGITS}g})."
    )
    return found


def _legend(analysis: Analysis) -> str:
    per_layer = sum(row["layer"] == 0 for row in analysis.heads)
    if "corr on I" in analysis.heads[0] and per_layer < FAIR_NULL:
        return (
            f"{LEGEND} With {per_layer} heads per layer (fewer than {FAIR_NULL}), another head is "
            "no fair null."
        )
    return LEGEND


def _split(title: str, columns: Mapping[str, Mapping[str, float | str]], width: int) -> list[Table]:
    """Return the columns in as many tables as the width requires."""
    metrics = list(dict.fromkeys(name for column in columns.values() for name in column))
    metrics = [name for name in metrics if name not in ("layer", "head")]
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
            table.add_row(metric, *(_cell(columns[place].get(metric)) for place in part))
        found.append(table)
    return found


def _cell(value: float | str | None) -> str:
    if value is None:
        return NOTHING
    return value if isinstance(value, str) else f"{value:.{DIGITS}g}"


def _mean(rows: list[dict[str, float]], layer: float) -> dict[str, float]:
    """Return the means over the heads of a layer; metrics that a head lacks are left out of it."""
    mine = [row for row in rows if row["layer"] == layer]
    found = {}
    for name in mine[0]:
        values = [row[name] for row in mine if name in row]
        found[name] = sum(values) / len(values)
    return found
