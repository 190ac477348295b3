"""Figures of one model's `Analysis`, drawn by matplotlib: maps, singular values, rank, lam, depth.

Other figures: `map_figure.py` (maps of two models on one sequence), `before_after_plots.py` (a
pretrained model before and after), `experiments/report/` (charts of a study).
"""

import textwrap
from pathlib import Path
from typing import Any

import numpy as np

from antiphase.analysis.analyze import RANK_SEQUENCES, Analysis, DrawnSequence
from antiphase.analysis.palette import (
    COLOURS,
    MATPLOTLIB_LINES,
    MATPLOTLIB_MARKERS,
    diverging_colormap,
    style,
)

BLOCK = "rows ≥ T/2, columns < T/2"
MOST_LABELS = 26  # of a map's axis; longer sequences show every n-th token
LONGEST_LABEL = 12  # characters of a token
LIMIT = 0.5  # weights beyond this have the strongest colour
ANSWER = COLOURS[2]
SEQUENCES = f"up to {RANK_SEQUENCES} sequences"


def draw_analysis(analysis: Analysis, folder: Path) -> list[Path]:
    """Draw every figure that the analysis allows.

    Args:
        analysis: what `analyze` returned.
        folder: where the PNG files go; created if missing.

    Returns:
        The files that were written.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    drawn = [
        _singular_values(plt, analysis, folder / "singular.png"),
        _ranks(plt, analysis, folder / "rank.png"),
    ]
    if analysis.drawn is not None:
        drawn.append(_maps(plt, analysis, analysis.drawn, folder / "maps.png"))
    if "lam" in analysis.heads[0]:
        drawn.append(_lambdas(plt, analysis, folder / "lambda.png"))
    if analysis.mass_by_depth:
        drawn.append(_depth(plt, analysis, folder / "depth.png"))
    return drawn


def _maps(plt: Any, analysis: Analysis, sequence: DrawnSequence, path: Path) -> Path:
    """Draw the maps of one head of each layer: the head with the most mass on R, or the first."""
    each = []
    for layer, maps in enumerate(sequence.maps):
        mine = [row for row in analysis.heads if row["layer"] == layer]
        head = int(max(mine, key=lambda row: row.get("mass on R", 0.0))["head"])
        each += [(f"layer {layer}, head {head}, sequence 0: {n}", A[head]) for n, A in maps.items()]
    columns = len(sequence.maps[0]) if len(sequence.maps[0]) > 1 else min(len(each), 5)
    places, labels, marked = _token_ticks(sequence)
    for axis, (title, A) in zip(_grid(plt, len(each), columns, 3.8), each, strict=False):
        axis.set_axis_on()
        _draw_map(plt, axis, A, sequence)
        axis.set_title(title, fontsize=9)
        axis.set_xticks(places, labels, fontsize=6, rotation=90, parse_math=False)
        axis.set_yticks(places, labels, fontsize=6, parse_math=False)
        for ticks in (axis.get_xticklabels(), axis.get_yticklabels()):
            for i in marked:
                ticks[i].set(color=ANSWER, weight="bold")
        if sequence.row is not None:
            axis.get_yticklabels()[places.index(sequence.row)].set(weight="bold")
    title = (
        f"Attention maps of {analysis.model}. Rows: queries, columns: keys, grey: future tokens."
    )
    if sequence.row is not None:
        title += (
            f" Black: row {sequence.row}, which predicts an answer. Green: the answer (R). "
            "Of each layer, the head with the most mass on R."
        )
    figure = plt.gcf()
    figure.suptitle(textwrap.fill(title, int(11 * figure.get_figwidth())), fontsize=10)
    return _saved(plt, path)


def _draw_map(plt: Any, axis: Any, A: Any, sequence: DrawnSequence) -> None:
    """Draw a map with its colour bar; frame R and the row that has to find it."""
    from matplotlib.patches import Rectangle

    T = len(A)
    largest = float(np.abs(A).max()) or 1.0
    most = min(largest, LIMIT)
    image = axis.imshow(
        A, cmap=diverging_colormap(), vmin=-most, vmax=most, interpolation="nearest"
    )
    future = np.triu(np.ones((T, T)), 1)
    axis.imshow(np.where(future, 0.9, np.nan), cmap="gray", vmin=0, vmax=1)
    for first, last in _spans(sequence.relevant):
        size = (last - first + 1, T)
        axis.add_patch(Rectangle((first - 0.5, -0.5), *size, fill=False, ec=ANSWER, lw=0.8))
    if sequence.row is not None:
        axis.add_patch(Rectangle((-0.5, sequence.row - 0.5), T, 1, fill=False, ec="black", lw=0.8))
    extend = "both" if largest > most else "neither"
    bar = plt.gcf().colorbar(image, ax=axis, fraction=0.045, pad=0.02, extend=extend)
    bar.ax.tick_params(labelsize=6)


def _token_ticks(sequence: DrawnSequence) -> tuple[list[float], list[str], list[int]]:
    """Return positions and labels of a map's axis, and the indices of those that are in R.

    All tokens of a short sequence; of a longer one every n-th, and always R and the query row.
    Adjacent positions of R share a label there.
    """
    names = [_label(token) for token in sequence.tokens]
    T = len(names)
    step = -(-T // MOST_LABELS)
    ticks: dict[float, str] = {}
    spans = _spans(sequence.relevant) if step > 1 else [(i, i) for i in sequence.relevant]
    for first, last in spans:
        ticks[(first + last) / 2] = " ".join(names[first : last + 1])
    answers = set(ticks)
    if sequence.row is not None:
        ticks[sequence.row] = names[sequence.row]
    taken = list(ticks)
    for i in range(0, T, step):
        if all(abs(i - place) >= step for place in taken):
            ticks[i] = names[i]
    places = sorted(ticks)
    marked = [i for i, place in enumerate(places) if place in answers]
    return places, [ticks[place] for place in places], marked


def _label(token: str) -> str:
    """Return a token on one line, with visible spaces at its ends, cut if it is long."""
    shown = repr(token)[1:-1] if token != token.strip() or not token.isprintable() else token
    return shown if len(shown) <= LONGEST_LABEL else shown[: LONGEST_LABEL - 1] + "…"


def _spans(positions: list[int]) -> list[tuple[int, int]]:
    """Return runs of adjacent positions as (first, last)."""
    spans: list[tuple[int, int]] = []
    for i in positions:
        if spans and spans[-1][1] == i - 1:
            spans[-1] = (spans[-1][0], i)
        else:
            spans.append((i, i))
    return spans


def _singular_values(plt: Any, analysis: Analysis, path: Path) -> Path:
    layers = analysis.singular_values
    axes = _grid(plt, len(layers), min(len(layers), 6), 2.8)
    for axis, (i, values) in zip(axes, enumerate(layers), strict=False):
        for j, (name, s) in enumerate(values.items()):
            s = np.maximum(np.asarray(s), 1e-12)
            line = {"linestyle": style(MATPLOTLIB_LINES, j), "color": style(COLOURS, j)}
            axis.semilogy(np.arange(1, len(s) + 1), s / s[0], label=name, **line)
        axis.set_title(f"layer {i}", fontsize=9)
        axis.set_xlabel("index of the singular value", fontsize=8)
        axis.set_ylim(1e-5, 1.5)
        axis.grid(alpha=0.25)
        axis.set_axis_on()
    axes[0].legend(fontsize=8)
    axes[0].set_ylabel("relative to the largest", fontsize=8)
    title = f"Singular values of {analysis.model}'s maps,\nmean over heads and {SEQUENCES}; {BLOCK}"
    plt.gcf().suptitle(title, fontsize=10)
    return _saved(plt, path)


def _ranks(plt: Any, analysis: Analysis, path: Path) -> Path:
    """Draw the effective rank of every head, and the mean of each layer as a line."""
    _, axis = plt.subplots(figsize=(5.4, 3.6), layout="constrained")
    prefix = "effective rank, "
    names = [n.removeprefix(prefix) for n in analysis.heads[0] if n.startswith(prefix)]
    layers = sorted({int(row["layer"]) for row in analysis.heads})
    for i, name in enumerate(n for n in names if n in analysis.singular_values[0]):
        by_layer = [
            [row[prefix + name] for row in analysis.heads if row["layer"] == layer]
            for layer in layers
        ]
        look = {"color": style(COLOURS, i), "marker": style(MATPLOTLIB_MARKERS, i)}
        line = style(MATPLOTLIB_LINES, i)
        axis.plot(layers, [np.mean(ranks) for ranks in by_layer], ls=line, label=name, **look)
        for layer, ranks in zip(layers, by_layer, strict=True):
            axis.plot([layer] * len(ranks), ranks, ls="", ms=3, alpha=0.5, **look)
    axis.set(xlabel="layer", ylabel="effective rank")
    axis.set_title(
        f"Effective rank of {analysis.model}'s maps ({BLOCK}):\n"
        f"each head as a small mark, their mean as a line; {SEQUENCES}",
        fontsize=9,
    )
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.set_ylim(bottom=0)
    axis.legend()
    axis.grid(alpha=0.25)
    return _saved(plt, path)


def _lambdas(plt: Any, analysis: Analysis, path: Path) -> Path:
    """Draw lam and lam* of the heads of each layer, side by side."""
    layers = sorted({int(row["layer"]) for row in analysis.heads})
    most = max(int(row["head"]) for row in analysis.heads) + 1
    _, axis = plt.subplots(figsize=(max(5.4, len(analysis.heads) / 4), 3.6), layout="constrained")
    x = [row["layer"] + 0.8 * ((row["head"] + 0.5) / most - 0.5) for row in analysis.heads]
    for i, (name, marker) in enumerate((("lam", "o"), ("optimal lam", "x"))):
        y = [row[name] for row in analysis.heads]
        axis.plot(x, y, marker, color=style(COLOURS, i), label=name, alpha=0.8)
    found = [
        (place, row["lam"])
        for place, row in zip(x, analysis.heads, strict=True)
        if analysis.is_retrieval_head(row["layer"], row["head"])
    ]
    if found:
        ring = {"ls": "", "mfc": "none", "mec": ANSWER, "ms": 11, "label": "retrieval head"}
        axis.plot(*zip(*found, strict=True), "o", **ring)
    axis.set(xlabel="layer; its heads side by side, from head 0", ylabel="lam")
    axis.set_title(
        f"lam of each head of {analysis.model},\nand the lam that removes most of A1 on I",
        fontsize=9,
    )
    axis.set_xticks(layers)
    for layer in layers[1:]:
        axis.axvline(layer - 0.5, color="0.8", lw=0.8)
    axis.legend(fontsize=8)
    axis.grid(alpha=0.25, axis="y")
    return _saved(plt, path)


def _depth(plt: Any, analysis: Analysis, path: Path) -> Path:
    _, axis = plt.subplots(figsize=(5.4, 3.6), layout="constrained")
    for i, (name, points) in enumerate(analysis.mass_by_depth.items()):
        look = {"color": style(COLOURS, i), "marker": style(MATPLOTLIB_MARKERS, i)}
        axis.plot(*zip(*points, strict=True), ls=style(MATPLOTLIB_LINES, i), label=name, **look)
    axis.set(xlabel="depth of the answer (0: start of the sequence)", ylabel="fraction of |A| on R")
    axis.set_title(
        f"{analysis.model}: mass on the answer by its depth,\nmean over the heads of all layers",
        fontsize=9,
    )
    axis.set_ylim(bottom=0)
    axis.legend(fontsize=8)
    axis.grid(alpha=0.25)
    return _saved(plt, path)


def _grid(plt: Any, count: int, columns: int, inches: float) -> list[Any]:
    """Return axes in rows of that many columns, without frames until something is drawn."""
    rows = -(-count // columns)
    size = (inches * columns, inches * rows)
    _, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    for axis in axes.flat:
        axis.set_axis_off()
    return list(axes.flat)


def _saved(plt: Any, path: Path) -> Path:
    """Write the current figure."""
    plt.savefig(path, dpi=110, bbox_inches="tight")
    plt.close()
    return path
