"""Pictures of one model: its maps, lambdas, ranks, and where it looks."""

from pathlib import Path
from typing import Any

import numpy as np

from antiphase.lab.analyze import Analysis


def draw(analysis: Analysis, folder: Path) -> list[Path]:
    """Write the pictures that the analysis allows; return them."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    if analysis.maps:
        drawn.append(_maps(plt, analysis, folder / "maps.png"))
    drawn.append(_singular(plt, analysis, folder / "singular.png"))
    if "lam" in analysis.heads[0]:
        drawn.append(_lambdas(plt, analysis, folder / "lambda.png"))
    if analysis.depth:
        drawn.append(_depth(plt, analysis, folder / "depth.png"))
    return drawn


def _maps(plt: Any, analysis: Analysis, path: Path) -> Path:
    """The first text's maps, head 0 of each layer: signal, noise, difference side by side."""
    rows, columns = len(analysis.maps), len(analysis.maps[0])
    figure, axes = plt.subplots(
        rows, columns, figsize=(3.2 * columns, 3.2 * rows), squeeze=False, layout="constrained"
    )
    for i, maps in enumerate(analysis.maps):
        for axis, (name, A) in zip(axes[i], maps.items(), strict=True):
            A = A[0]
            most = float(np.abs(A).max()) or 1.0
            axis.imshow(A, cmap="RdBu_r", vmin=-most, vmax=most, interpolation="nearest")
            axis.set_title(f"layer {i}, {name}", fontsize=9)
            axis.set(xticks=[], yticks=[])
    return _saved(plt, figure, path)


def _singular(plt: Any, analysis: Analysis, path: Path) -> Path:
    layers = len(analysis.singular)
    columns = min(layers, 4)
    rows = -(-layers // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(3.2 * columns, 2.8 * rows), squeeze=False, layout="constrained"
    )
    for axis, (i, values) in zip(axes.flat, enumerate(analysis.singular), strict=False):
        for (name, s), style in zip(values.items(), ("-", "--", ":"), strict=False):
            s = np.maximum(np.asarray(s), 1e-12)
            axis.semilogy(np.arange(1, len(s) + 1), s / s[0], style, label=name)
        axis.set_title(f"layer {i}", fontsize=9)
        axis.set_ylim(1e-5, 1.5)
        axis.grid(alpha=0.25)
    axes.flat[0].legend(fontsize=8)
    figure.suptitle("Singular values, rows ≥ T/2 and columns < T/2", fontsize=10)
    return _saved(plt, figure, path)


def _lambdas(plt: Any, analysis: Analysis, path: Path) -> Path:
    figure, axis = plt.subplots(figsize=(5, 3.2), layout="constrained")
    for name, marker in (("lam", "o"), ("lam*", "x")):
        x = [row["layer"] for row in analysis.heads]
        axis.plot(x, [row[name] for row in analysis.heads], marker, label=name, alpha=0.8)
    axis.set(xlabel="layer", title="lam of each head, and lam* that removes most noise")
    axis.set_xticks(sorted({int(row["layer"]) for row in analysis.heads}))
    axis.legend()
    axis.grid(alpha=0.25)
    return _saved(plt, figure, path)


def _depth(plt: Any, analysis: Analysis, path: Path) -> Path:
    figure, axis = plt.subplots(figsize=(5, 3.2), layout="constrained")
    axis.plot(*zip(*analysis.depth, strict=True), "o-")
    axis.set(xlabel="where the answer stands (0: start)", title="Attention to the answer by depth")
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.25)
    return _saved(plt, figure, path)


def _saved(plt: Any, figure: Any, path: Path) -> Path:
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path
