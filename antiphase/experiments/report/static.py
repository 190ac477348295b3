"""The same pictures as files, for Markdown, drawn by matplotlib."""

from pathlib import Path
from typing import Any

from antiphase.analysis.plots import COLOURS
from antiphase.experiments.experiment import Heatmap, Picture
from antiphase.experiments.study import Result

_STYLES = ("o-", "s--", "D:", "P-.", "X-", "^--", "*:")
_HATCHES = ("", "//", "xx", "..", "\\\\")


def still_names(result: Result) -> list[str]:
    """Return the files of a test's pictures, in their order."""
    return [f"test-{result.number:02}-{i + 1}.png" for i in range(len(result.pictures))]


def write_stills(results: list[Result], folder: Path) -> None:
    """Draw every picture into a folder."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    for result in results:
        for name, picture in zip(still_names(result), result.pictures, strict=True):
            figure, axis = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
            if isinstance(picture, Heatmap):
                _heatmap(axis, picture)
            else:
                _series(axis, picture)
            axis.set_title(picture.title, fontsize=10)
            axis.set(xlabel=picture.x, ylabel=picture.y)
            figure.savefig(folder / name, dpi=110)
            plt.close(figure)


def _series(axis: Any, picture: Picture) -> None:
    many = len(picture.series)
    names = [x for points in picture.series.values() for x, _ in points]
    words = picture.kind == "bars" or any(isinstance(x, str) for x in names)
    places = {x: i for i, x in enumerate(dict.fromkeys(names))}
    for i, (name, points) in enumerate(picture.series.items()):
        colour = COLOURS[i % len(COLOURS)]
        x = [float(places[x]) if words else x for x, _ in points]
        y = [found.mean for _, found in points]
        bars = [[f.mean - f.low for _, f in points], [f.high - f.mean for _, f in points]]
        if picture.kind == "bars":
            wide = 0.8 / many
            x = [place + (i - (many - 1) / 2) * wide for place in x]
            look = {"color": colour, "hatch": _HATCHES[i % len(_HATCHES)], "edgecolor": "white"}
            axis.bar(x, y, wide, yerr=bars, label=name, error_kw={"lw": 1}, **look)
        else:
            style = _STYLES[i % len(_STYLES)]
            axis.errorbar(x, y, bars, fmt=style, color=colour, label=name, elinewidth=1, ms=4)
    if words:
        labels = [str(x) for x in places]
        long = {"rotation": 20, "ha": "right", "fontsize": 8} if len("".join(labels)) > 50 else {}
        axis.set_xticks(list(places.values()), labels, **long)
    if many > 1:
        axis.legend(fontsize=8)
    axis.grid(alpha=0.25)


def _heatmap(axis: Any, picture: Heatmap) -> None:
    most = max((abs(v) for row in picture.values for v in row), default=1.0) or 1.0
    axis.imshow(picture.values, cmap="PuOr", vmin=-most, vmax=most, aspect="auto", origin="lower")
    axis.set_xticks(range(len(picture.columns)), picture.columns)
    axis.set_yticks(range(len(picture.rows)), picture.rows)
    for i, row in enumerate(picture.values):
        for j, value in enumerate(row):
            axis.text(j, i, f"{value:+.3f}", ha="center", va="center", fontsize=8)
