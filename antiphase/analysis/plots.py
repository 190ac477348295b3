"""Figures of one model's `Analysis`, drawn by matplotlib: maps, singular values, rank, lam, depth.

Other figures: `map_figure.py` (maps of two models on one sequence), `before_after_plots.py` (a
pretrained model before and after), `experiments/report/` (charts of a study).
"""

from pathlib import Path
from typing import Any

import numpy as np

from antiphase.analysis.analyze import Analysis
from antiphase.analysis.palette import (
    COLOURS,
    MATPLOTLIB_LINES,
    MATPLOTLIB_MARKERS,
    diverging_colormap,
    style,
)

BLOCK = "rows ≥ T/2 and columns < T/2"


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
        _maps(plt, analysis, folder / "maps.png"),
        _singular_values(plt, analysis, folder / "singular.png"),
        _ranks(plt, analysis, folder / "rank.png"),
    ]
    if "lam" in analysis.heads[0]:
        drawn.append(_lambdas(plt, analysis, folder / "lambda.png"))
    if analysis.mass_by_depth:
        drawn.append(_depth(plt, analysis, folder / "depth.png"))
    return drawn


def _maps(plt: Any, analysis: Analysis, path: Path) -> Path:
    """Draw the maps of head 0 of each layer on the first sequence, side by side."""
    each = [(i, name, A[0]) for i, maps in enumerate(analysis.maps) for name, A in maps.items()]
    colours = diverging_colormap()
    columns = len(analysis.maps[0]) if len(analysis.maps[0]) > 1 else min(len(each), 6)
    for axis, (i, name, A) in zip(_grid(plt, len(each), columns, 3.0), each, strict=False):
        most = float(np.abs(A).max()) or 1.0
        axis.imshow(A, cmap=colours, vmin=-most, vmax=most, interpolation="nearest")
        axis.set_title(f"layer {i}, head 0: {name}", fontsize=9)
    plt.gcf().suptitle("Attention maps of the first sequence", fontsize=10)
    return _saved(plt, path)


def _singular_values(plt: Any, analysis: Analysis, path: Path) -> Path:
    layers = analysis.singular_values
    axes = _grid(plt, len(layers), min(len(layers), 6), 2.8)
    for axis, (i, values) in zip(axes, enumerate(layers), strict=False):
        for j, (name, s) in enumerate(values.items()):
            s = np.maximum(np.asarray(s), 1e-12)
            line = {"linestyle": style(MATPLOTLIB_LINES, j), "color": style(COLOURS, j)}
            axis.semilogy(np.arange(1, len(s) + 1), s / s[0], label=name, **line)
        axis.set_title(f"layer {i}", fontsize=9)
        axis.set_ylim(1e-5, 1.5)
        axis.grid(alpha=0.25)
        axis.set_axis_on()
    axes[0].legend(fontsize=8)
    plt.gcf().suptitle(f"Singular values, {BLOCK}", fontsize=10)
    return _saved(plt, path)


def _ranks(plt: Any, analysis: Analysis, path: Path) -> Path:
    _, axis = plt.subplots(figsize=(5, 3.2), layout="constrained")
    prefix = "effective rank, "
    names = [name for name in analysis.layers[0] if name.startswith(prefix)]
    layers = [row["layer"] for row in analysis.layers]
    for i, name in enumerate(names):
        line = {
            "color": style(COLOURS, i),
            "marker": style(MATPLOTLIB_MARKERS, i),
            "linestyle": style(MATPLOTLIB_LINES, i),
        }
        ranks = [row[name] for row in analysis.layers]
        axis.plot(layers, ranks, label=name.removeprefix(prefix), **line)
    axis.set(xlabel="layer", title=f"Effective rank of the maps, {BLOCK}")
    axis.set_ylim(bottom=0)
    axis.legend()
    axis.grid(alpha=0.25)
    return _saved(plt, path)


def _lambdas(plt: Any, analysis: Analysis, path: Path) -> Path:
    _, axis = plt.subplots(figsize=(5, 3.2), layout="constrained")
    for i, (name, marker) in enumerate((("lam", "o"), ("optimal lam", "x"))):
        x = [row["layer"] for row in analysis.heads]
        y = [row[name] for row in analysis.heads]
        axis.plot(x, y, marker, color=style(COLOURS, i), label=name, alpha=0.8)
    axis.set(xlabel="layer", title="lam of each head, and the lam that removes most noise")
    axis.set_xticks(sorted({int(row["layer"]) for row in analysis.heads}))
    axis.legend()
    axis.grid(alpha=0.25)
    return _saved(plt, path)


def _depth(plt: Any, analysis: Analysis, path: Path) -> Path:
    _, axis = plt.subplots(figsize=(5, 3.2), layout="constrained")
    axis.plot(*zip(*analysis.mass_by_depth, strict=True), "o-", color=COLOURS[0])
    axis.set(
        xlabel="depth of the answer (0: start of the sequence)",
        title="Fraction of |A| on the answer (R), by depth",
    )
    axis.set_ylim(bottom=0)
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
    plt.savefig(path, dpi=110)
    plt.close()
    return path
