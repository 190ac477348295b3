"""Pictures of one model: its maps, lambdas, ranks, and where it looks."""

from pathlib import Path
from typing import Any

import numpy as np

from antiphase.analysis.analyze import Analysis

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


def draw(analysis: Analysis, folder: Path) -> list[Path]:
    """Write the pictures that the analysis allows; return them."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    drawn.append(_maps(plt, analysis, folder / "maps.png"))
    drawn.append(_singular(plt, analysis, folder / "singular.png"))
    drawn.append(_ranks(plt, analysis, folder / "rank.png"))
    if "lam" in analysis.heads[0]:
        drawn.append(_lambdas(plt, analysis, folder / "lambda.png"))
    if analysis.depth:
        drawn.append(_depth(plt, analysis, folder / "depth.png"))
    return drawn


def _maps(plt: Any, analysis: Analysis, path: Path) -> Path:
    """The first text's maps, head 0 of each layer: signal, noise, difference side by side."""
    each = [(i, name, A[0]) for i, maps in enumerate(analysis.maps) for name, A in maps.items()]
    columns = len(analysis.maps[0]) if len(analysis.maps[0]) > 1 else min(len(each), 6)
    for axis, (i, name, A) in zip(_grid(plt, len(each), columns, 3.0), each, strict=False):
        most = float(np.abs(A).max()) or 1.0
        axis.imshow(A, cmap="RdBu_r", vmin=-most, vmax=most, interpolation="nearest")
        axis.set_title(f"layer {i}, {name}", fontsize=9)
    return _saved(plt, path)


def _singular(plt: Any, analysis: Analysis, path: Path) -> Path:
    axes = _grid(plt, len(analysis.singular), min(len(analysis.singular), 6), 2.8)
    for axis, (i, values) in zip(axes, enumerate(analysis.singular), strict=False):
        for (name, s), style in zip(values.items(), ("-", "--", ":"), strict=False):
            s = np.maximum(np.asarray(s), 1e-12)
            axis.semilogy(np.arange(1, len(s) + 1), s / s[0], style, label=name)
        axis.set_title(f"layer {i}", fontsize=9)
        axis.set_ylim(1e-5, 1.5)
        axis.grid(alpha=0.25)
        axis.set_axis_on()
    axes[0].legend(fontsize=8)
    plt.gcf().suptitle("Singular values, rows ≥ T/2 and columns < T/2", fontsize=10)
    return _saved(plt, path)


def _ranks(plt: Any, analysis: Analysis, path: Path) -> Path:
    _, axis = plt.subplots(figsize=(5, 3.2), layout="constrained")
    names = [name for name in analysis.layers[0] if name.startswith("rank of ")]
    for name, style in zip(names, ("o-", "s--", "D:"), strict=False):
        layers = [row["layer"] for row in analysis.layers]
        axis.plot(layers, [row[name] for row in analysis.layers], style, label=name[8:])
    axis.set(xlabel="layer", title="Effective rank of the maps, rows ≥ T/2 and columns < T/2")
    axis.set_ylim(bottom=0)
    axis.legend()
    axis.grid(alpha=0.25)
    return _saved(plt, path)


def _grid(plt: Any, count: int, columns: int, inches: float) -> list[Any]:
    """Return axes in rows of that many, all without a frame until something is drawn."""
    rows = -(-count // columns)
    size = (inches * columns, inches * rows)
    _, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    for axis in axes.flat:
        axis.set_axis_off()
    return list(axes.flat)


def _lambdas(plt: Any, analysis: Analysis, path: Path) -> Path:
    _, axis = plt.subplots(figsize=(5, 3.2), layout="constrained")
    for name, marker in (("lam", "o"), ("lam*", "x")):
        x = [row["layer"] for row in analysis.heads]
        axis.plot(x, [row[name] for row in analysis.heads], marker, label=name, alpha=0.8)
    axis.set(xlabel="layer", title="lam of each head, and lam* that removes most noise")
    axis.set_xticks(sorted({int(row["layer"]) for row in analysis.heads}))
    axis.legend()
    axis.grid(alpha=0.25)
    return _saved(plt, path)


def _depth(plt: Any, analysis: Analysis, path: Path) -> Path:
    _, axis = plt.subplots(figsize=(5, 3.2), layout="constrained")
    axis.plot(*zip(*analysis.depth, strict=True), "o-")
    axis.set(xlabel="where the answer stands (0: start)", title="Attention to the answer by depth")
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.25)
    return _saved(plt, path)


def _saved(plt: Any, path: Path) -> Path:
    """Write the picture that is being drawn."""
    plt.savefig(path, dpi=110)
    plt.close()
    return path
