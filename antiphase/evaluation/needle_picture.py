"""A picture of the needles that models found, by depth and length."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np


def draw_needles(
    models: Sequence[str],
    words: Sequence[int],
    depths: Sequence[float],
    found: Sequence[Sequence[Sequence[float]]],
    path: Path,
) -> None:
    """Draw one grid per model, and with two models their difference.

    Args:
        models: names.
        words: lengths of the haystack.
        depths: of the needle.
        found: per model the fraction found, [lengths, depths].
        path: of the picture.
    """
    grids = [
        (name, np.array(grid, dtype=float), 0.0, "viridis")
        for name, grid in zip(models, found, strict=True)
    ]
    if len(grids) == 2:
        title = f"{models[1]} minus {models[0]}"
        grids.append((title, grids[1][1] - grids[0][1], -1.0, "RdBu"))
    figure, axes = plt.subplots(
        1, len(grids), figsize=(4.2 * len(grids), 3.2), squeeze=False, layout="constrained"
    )
    for axis, (title, grid, low, colours) in zip(axes[0], grids, strict=True):
        axis.imshow(grid.T, vmin=low, vmax=1.0, cmap=colours, aspect="auto")
        axis.set_xticks(range(len(words)), [str(w) for w in words])
        axis.set_yticks(range(len(depths)), [f"{d:g}" for d in depths])
        axis.set(xlabel="length, words", ylabel="depth of the needle", title=title)
        for (i, j), value in np.ndenumerate(grid):
            axis.text(
                i,
                j,
                f"{value:.2f}",
                ha="center",
                va="center",
                fontsize=8,
                color="black",
                bbox={"facecolor": "white", "alpha": 0.6, "edgecolor": "none", "pad": 1},
            )
    figure.savefig(path, dpi=120)
    plt.close(figure)
