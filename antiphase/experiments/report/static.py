"""Charts, heatmaps and attention maps of a study as PNG files, drawn by matplotlib.

`interactive.py` draws the same with plotly, for the HTML page.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from antiphase.analysis.palette import (
    COLOURS,
    MATPLOTLIB_HATCHES,
    MATPLOTLIB_LINES,
    MATPLOTLIB_MARKERS,
    diverging_colormap,
    style,
)
from antiphase.experiments.attention_example import AttentionExample, HeadMap
from antiphase.experiments.experiment import Chart, Figure, Heatmap
from antiphase.experiments.report.panels import colour_limit, panels
from antiphase.experiments.results import Result

MAP_LIMIT = 0.5  # weights beyond this have the strongest colour
NOT_VISIBLE = "#e6e6e6"  # of later tokens in a map
LABELS = 16  # of tokens on an axis of a map
COLUMNS = 4  # of panels


def figure_names(result: Result) -> list[str]:
    """Return the file names of a test's figures, in their order."""
    return [f"test-{result.number:02}-{i + 1}.png" for i in range(len(result.figures))]


def write_figures(results: list[Result], folder: Path) -> None:
    """Draw every figure of the results into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for result in results:
        for name, figure in zip(figure_names(result), result.figures, strict=True):
            write_figure(figure, folder / name, result.figures)


def write_figure(figure: Figure, path: Path, beside: Sequence[Figure] = ()) -> None:
    """Draw one figure into a file.

    Args:
        figure: to draw.
        path: of the PNG.
        beside: figures that it is compared with; heatmaps among them share their colours.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    drawn = _draw(figure, beside or [figure])
    drawn.savefig(path, dpi=110)
    plt.close(drawn)


def _draw(figure: Figure, beside: Sequence[Figure]) -> Any:
    """Return a figure with one axis, or with one per panel."""
    import matplotlib.pyplot as plt

    parts: list[Figure] = [figure] if isinstance(figure, Heatmap) else [*panels(figure)]
    width = min(len(parts), COLUMNS)
    height = -(-len(parts) // width)
    size = (6.4, 3.6) if len(parts) == 1 else (2.4 * width, 2.3 * height + 0.3)
    drawn, axes = plt.subplots(height, width, figsize=size, squeeze=False, layout="constrained")
    for axis, part in zip(axes.flat, parts, strict=False):
        if isinstance(part, Heatmap):
            _heatmap(axis, part, colour_limit(part, beside))
        else:
            _series(axis, part)
        axis.set_title(part.title, fontsize=10)
        axis.set(xlabel=part.x, ylabel=part.y)
    for axis in axes.flat[len(parts) :]:
        axis.set_visible(False)
    if len(parts) > 1:
        drawn.suptitle(figure.title, fontsize=10)
    return drawn


def _series(axis: Any, chart: Chart) -> None:
    count = len(chart.series)
    names = [x for points in chart.series.values() for x, _ in points]
    categories = chart.kind == "bars" or any(isinstance(x, str) for x in names)
    places = {x: i for i, x in enumerate(dict.fromkeys(names))}
    for i, (name, points) in enumerate(chart.series.items()):
        colour = style(COLOURS, i)
        x = [float(places[x]) if categories else x for x, _ in points]
        y = [interval.mean for _, interval in points]
        error_bars = [[n.mean - n.low for _, n in points], [n.high - n.mean for _, n in points]]
        if chart.kind == "bars":
            width = 0.8 / count
            x = [place + (i - (count - 1) / 2) * width for place in x]
            fill = {
                "color": colour,
                "alpha": 0.75,
                "hatch": style(MATPLOTLIB_HATCHES, i),
                "edgecolor": "white",
            }
            axis.bar(x, y, width, yerr=error_bars, label=name, error_kw={"lw": 1}, **fill)
        else:
            line = style(MATPLOTLIB_MARKERS, i) + style(MATPLOTLIB_LINES, i)
            axis.errorbar(x, y, error_bars, fmt=line, color=colour, label=name, elinewidth=1, ms=4)
        dots = [(at, v) for at, (_, n) in zip(x, points, strict=True) for v in n.by_seed or ()]
        axis.plot([at for at, _ in dots], [v for _, v in dots], ".", color="black", ms=3, alpha=0.6)
    if categories:
        labels = [str(x) for x in places]
        long = len("".join(labels)) > 50
        tilted = {"rotation": 20, "ha": "right", "fontsize": 8} if long else {}
        axis.set_xticks(list(places.values()), labels, **tilted)
    if count > 1:
        axis.legend(fontsize=8)
    axis.grid(alpha=0.25)


def _heatmap(axis: Any, heatmap: Heatmap, limit: float) -> None:
    limits = {"cmap": diverging_colormap(), "vmin": -limit, "vmax": limit}
    image = axis.imshow(heatmap.values, aspect="auto", origin="lower", **limits)
    axis.figure.colorbar(image, ax=axis, label=heatmap.unit)
    axis.set_xticks(range(len(heatmap.columns)), heatmap.columns)
    axis.set_yticks(range(len(heatmap.rows)), heatmap.rows)
    for i, row in enumerate(heatmap.values):
        for j, value in enumerate(row):
            axis.text(j, i, f"{value:+.3f}", ha="center", va="center", fontsize=8)


def thinned(example: AttentionExample) -> list[int]:
    """Return the positions whose tokens are labelled: answer and query, and some others."""
    T = len(example.tokens)
    marked = [*example.answer, *example.query]
    step = max(1, round(T / LABELS))
    clear = (i for i in range(0, T, step) if all(abs(i - m) >= step for m in marked))
    return sorted({*clear, *(marked if step == 1 else (example.answer[-1], example.query[-1]))})


def map_rows(example: AttentionExample) -> dict[str, list[HeadMap]]:
    """Return the maps of each head, by the name of a file."""
    found: dict[str, list[HeadMap]] = {}
    for m in example.maps:
        name = f"map-{m.arm}-layer{m.layer}-head{m.head}.png".replace(" ", "-")
        found.setdefault(name, []).append(m)
    return found


def write_maps(example: AttentionExample, folder: Path) -> None:
    """Draw the maps of each head beside each other, one file per head."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    for name, maps in map_rows(example).items():
        size = (3.9 * len(maps) + 0.6, 4)
        drawn, axes = plt.subplots(
            1, len(maps), figsize=size, squeeze=False, sharey=True, layout="constrained"
        )
        for axis, m in zip(axes[0], maps, strict=True):
            image = _map(axis, m, example)
        bar = drawn.colorbar(image, ax=list(axes[0]), extend="both", aspect=30, pad=0.02)
        bar.set_label("attention weight", fontsize=8)
        bar.ax.tick_params(labelsize=7)
        drawn.savefig(folder / name, dpi=110, bbox_inches="tight")
        plt.close(drawn)


def _map(axis: Any, m: HeadMap, example: AttentionExample) -> Any:
    """Draw a map; frame the columns of the answer and the row of the query."""
    from matplotlib.patches import Rectangle

    T, places = len(example.tokens), thinned(example)
    axis.set_facecolor(NOT_VISIBLE)
    limits = {"vmin": -MAP_LIMIT, "vmax": MAP_LIMIT, "interpolation": "nearest"}
    image = axis.imshow(m.weights, cmap=diverging_colormap(), **limits)
    first, last = example.answer[0], example.answer[-1]
    frame: dict[str, Any] = {"fill": False, "lw": 1.2}
    axis.add_patch(Rectangle((first - 0.5, -0.5), last - first + 1, T, ec=COLOURS[2], **frame))
    axis.add_patch(Rectangle((-0.5, T - 1.5), T, 1, ec="black", **frame))
    labels = [example.tokens[i] for i in places]
    axis.set_xticks(places, labels, rotation=90, fontsize=7)
    axis.set_yticks(places, labels, fontsize=7)
    axis.set_title(example.title(m), fontsize=9)
    return image
