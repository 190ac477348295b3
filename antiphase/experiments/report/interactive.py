"""Pictures of a study, drawn by plotly in colours that colour-blind readers can tell apart."""

from typing import Any

from antiphase.analysis.plots import COLOURS
from antiphase.analysis.statistics import Interval
from antiphase.experiments.experiment import Heatmap, Picture

DASHES = ("solid", "dash", "dot", "dashdot")
MARKERS = ("circle", "square", "diamond", "cross", "x", "triangle-up", "star")


def figure(picture: Picture | Heatmap) -> Any:
    """Return a plotly figure."""
    import plotly.graph_objects as go

    drawn = go.Figure()
    if isinstance(picture, Heatmap):
        _heatmap(drawn, picture)
    else:
        for i, (name, points) in enumerate(picture.series.items()):
            _series(drawn, picture, i, name, points)
        many = len(picture.series) > 1
        drawn.update_layout(showlegend=many, legend={"orientation": "h", "y": -0.25})
    drawn.update_layout(
        title={"text": picture.title, "font": {"size": 15}},
        xaxis_title=picture.x,
        yaxis_title=picture.y,
        template="plotly_white",
        height=380,
        margin={"l": 60, "r": 20, "t": 50, "b": 60},
    )
    return drawn


def _series(
    drawn: Any, picture: Picture, i: int, name: str, points: list[tuple[Any, Interval]]
) -> None:
    import plotly.graph_objects as go

    colour = COLOURS[i % len(COLOURS)]
    x, y = [p[0] for p in points], [p[1].mean for p in points]
    bars = {
        "type": "data",
        "symmetric": False,
        "array": [p[1].high - p[1].mean for p in points],
        "arrayminus": [p[1].mean - p[1].low for p in points],
        "thickness": 1,
    }
    if picture.kind == "bars":
        shape = ("", "/", "x", ".", "\\")[i % 5]
        look = {"color": colour, "pattern": {"shape": shape}}
        drawn.add_trace(go.Bar(x=x, y=y, name=name, error_y=bars, marker=look))
        return
    drawn.add_trace(
        go.Scatter(
            x=x,
            y=y,
            name=name,
            error_y=bars,
            mode="lines+markers",
            line={"color": colour, "dash": DASHES[i % len(DASHES)]},
            marker={"symbol": MARKERS[i % len(MARKERS)], "size": 7},
        )
    )


def _heatmap(drawn: Any, picture: Heatmap) -> None:
    import plotly.graph_objects as go

    most = max((abs(v) for row in picture.values for v in row), default=1.0) or 1.0
    drawn.add_trace(
        go.Heatmap(
            z=picture.values,
            x=picture.columns,
            y=picture.rows,
            zmin=-most,
            zmax=most,
            colorscale=[[0, "#D55E00"], [0.5, "#FFFFFF"], [1, "#0072B2"]],
            text=[[f"{v:+.3f}" for v in row] for row in picture.values],
            texttemplate="%{text}",
        )
    )
    drawn.update_xaxes(type="category")
    drawn.update_yaxes(type="category")
