"""Charts and heatmaps of a study as PNG files for Markdown, drawn by matplotlib.

`interactive.py` draws the same with plotly, for the HTML page.
"""

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
from antiphase.experiments.experiment import Chart, Heatmap
from antiphase.experiments.results import Result


def figure_names(result: Result) -> list[str]:
    """Return the file names of a test's figures, in their order."""
    return [f"test-{result.number:02}-{i + 1}.png" for i in range(len(result.figures))]


def write_figures(results: list[Result], folder: Path) -> None:
    """Draw every figure of the results into a folder."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    for result in results:
        for name, figure in zip(figure_names(result), result.figures, strict=True):
            drawn, axis = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
            if isinstance(figure, Heatmap):
                _heatmap(axis, figure)
            else:
                _series(axis, figure)
            axis.set_title(figure.title, fontsize=10)
            axis.set(xlabel=figure.x, ylabel=figure.y)
            drawn.savefig(folder / name, dpi=110)
            plt.close(drawn)


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
            fill = {"color": colour, "hatch": style(MATPLOTLIB_HATCHES, i), "edgecolor": "white"}
            axis.bar(x, y, width, yerr=error_bars, label=name, error_kw={"lw": 1}, **fill)
        else:
            line = style(MATPLOTLIB_MARKERS, i) + style(MATPLOTLIB_LINES, i)
            axis.errorbar(x, y, error_bars, fmt=line, color=colour, label=name, elinewidth=1, ms=4)
    if categories:
        labels = [str(x) for x in places]
        long = len("".join(labels)) > 50
        tilted = {"rotation": 20, "ha": "right", "fontsize": 8} if long else {}
        axis.set_xticks(list(places.values()), labels, **tilted)
    if count > 1:
        axis.legend(fontsize=8)
    axis.grid(alpha=0.25)


def _heatmap(axis: Any, heatmap: Heatmap) -> None:
    most = max((abs(v) for row in heatmap.values for v in row), default=1.0) or 1.0
    limits = {"cmap": diverging_colormap(), "vmin": -most, "vmax": most}
    axis.imshow(heatmap.values, aspect="auto", origin="lower", **limits)
    axis.set_xticks(range(len(heatmap.columns)), heatmap.columns)
    axis.set_yticks(range(len(heatmap.rows)), heatmap.rows)
    for i, row in enumerate(heatmap.values):
        for j, value in enumerate(row):
            axis.text(j, i, f"{value:+.3f}", ha="center", va="center", fontsize=8)
