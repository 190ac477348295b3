"""What can be compared by eye shares an axis or a colour scale, and nothing else does."""

from collections.abc import Sequence

from antiphase.experiments.experiment import Chart, Figure, Heatmap


def panels(chart: Chart) -> list[Chart]:
    """Return a chart per x, with the series side by side, if the chart has no common y axis.

    Returns:
        The chart itself, alone, if all its values share one axis.
    """
    if chart.y:
        return [chart]
    names = dict.fromkeys(x for points in chart.series.values() for x, _ in points)
    return [
        Chart(
            str(name),
            "",
            "",
            {"": [(s, i) for s, points in chart.series.items() for x, i in points if x == name]},
            chart.kind,
        )
        for name in names
    ]


def colour_limit(heatmap: Heatmap, beside: Sequence[Figure] = ()) -> float:
    """Return the largest magnitude of a heatmap, and of those of the same unit beside it."""
    same = [f for f in beside if isinstance(f, Heatmap) and f.unit == heatmap.unit]
    values = (abs(v) for h in (heatmap, *same) for row in h.values for v in row)
    return max(values, default=1.0) or 1.0
