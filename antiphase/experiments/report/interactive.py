"""Charts and heatmaps of a study for its HTML page, drawn by plotly.

`static.py` draws the same with matplotlib, for Markdown.
"""

from typing import Any

from antiphase.analysis.palette import (
    COLOURS,
    DIVERGING,
    PLOTLY_LINES,
    PLOTLY_MARKERS,
    PLOTLY_PATTERNS,
    style,
)
from antiphase.analysis.statistics import Interval
from antiphase.experiments.experiment import Chart, Figure, Heatmap


def plotly_figure(figure: Figure) -> Any:
    """Return a chart or heatmap as a plotly figure."""
    import plotly.graph_objects as go

    drawn = go.Figure()
    if isinstance(figure, Heatmap):
        _heatmap(drawn, figure)
    else:
        for i, (name, points) in enumerate(figure.series.items()):
            _series(drawn, figure, i, name, points)
        several = len(figure.series) > 1
        drawn.update_layout(showlegend=several, legend={"orientation": "h", "y": -0.25})
    drawn.update_layout(
        title={"text": figure.title, "font": {"size": 15}},
        xaxis_title=figure.x,
        yaxis_title=figure.y,
        template="plotly_white",
        height=380,
        margin={"l": 60, "r": 20, "t": 50, "b": 60},
    )
    return drawn


def _series(
    drawn: Any, chart: Chart, i: int, name: str, points: list[tuple[Any, Interval]]
) -> None:
    import plotly.graph_objects as go

    colour = style(COLOURS, i)
    x, y = [p[0] for p in points], [p[1].mean for p in points]
    error_bars = {
        "type": "data",
        "symmetric": False,
        "array": [p[1].high - p[1].mean for p in points],
        "arrayminus": [p[1].mean - p[1].low for p in points],
        "thickness": 1,
    }
    if chart.kind == "bars":
        fill = {"color": colour, "pattern": {"shape": style(PLOTLY_PATTERNS, i)}}
        drawn.add_trace(go.Bar(x=x, y=y, name=name, error_y=error_bars, marker=fill))
        return
    drawn.add_trace(
        go.Scatter(
            x=x,
            y=y,
            name=name,
            error_y=error_bars,
            mode="lines+markers",
            line={"color": colour, "dash": style(PLOTLY_LINES, i)},
            marker={"symbol": style(PLOTLY_MARKERS, i), "size": 7},
        )
    )


def _heatmap(drawn: Any, heatmap: Heatmap) -> None:
    import plotly.graph_objects as go

    most = max((abs(v) for row in heatmap.values for v in row), default=1.0) or 1.0
    drawn.add_trace(
        go.Heatmap(
            z=heatmap.values,
            x=heatmap.columns,
            y=heatmap.rows,
            zmin=-most,
            zmax=most,
            colorscale=[[i / 2, colour] for i, colour in enumerate(DIVERGING)],
            text=[[f"{v:+.3f}" for v in row] for row in heatmap.values],
            texttemplate="%{text}",
        )
    )
    drawn.update_xaxes(type="category")
    drawn.update_yaxes(type="category")
