"""Charts, heatmaps and attention maps of a study for its HTML page, drawn by plotly.

`static.py` draws the same with matplotlib, for Markdown.
"""

from collections.abc import Sequence
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
from antiphase.experiments.attention_example import AttentionExample, HeadMap
from antiphase.experiments.experiment import Chart, Figure, Heatmap
from antiphase.experiments.report.panels import colour_limit, panels
from antiphase.experiments.report.static import MAP_LIMIT, NOT_VISIBLE, thinned

COLOUR_SCALE = [[i / 2, colour] for i, colour in enumerate(DIVERGING)]
SEED_DOTS = {"color": "#1b1f24", "size": 5, "opacity": 0.55}


def plotly_figure(figure: Figure, seeds: Sequence[int] = (), beside: Sequence[Figure] = ()) -> Any:
    """Return a chart or heatmap as a plotly figure; the values of each seed are dots.

    Args:
        figure: to draw.
        seeds: names of the dots.
        beside: other figures; heatmaps of the same unit share their colours.
    """
    import plotly.graph_objects as go

    drawn = go.Figure()
    if isinstance(figure, Heatmap):
        _heatmap(drawn, figure, colour_limit(figure, beside))
    else:
        for i, (name, points) in enumerate(figure.series.items()):
            _series(drawn, figure, i, name, points)
            _dots(drawn, i, points, seeds)
        several = len(figure.series) > 1
        drawn.update_layout(
            showlegend=several,
            legend={"orientation": "h", "y": -0.25},
            scattermode="group" if figure.kind == "bars" else "overlay",
        )
        if figure.kind == "bars":
            drawn.update_xaxes(type="category")
    drawn.update_layout(
        title={"text": figure.title, "font": {"size": 15}},
        xaxis_title=figure.x,
        yaxis_title=figure.y,
        template="plotly_white",
        height=380,
        margin={"l": 60, "r": 20, "t": 50, "b": 60},
    )
    return drawn


def plotly_panels(
    figure: Figure, seeds: Sequence[int] = (), beside: Sequence[Figure] = ()
) -> list[Any]:
    """Return a figure as plotly figures: one, or a small one for each unit."""
    parts = [figure] if isinstance(figure, Heatmap) else panels(figure)
    drawn = [plotly_figure(part, seeds, beside) for part in parts]
    if len(drawn) > 1:
        for panel in drawn:
            panel.update_layout(
                title_font_size=13, height=240, margin={"l": 45, "r": 10, "t": 40, "b": 35}
            )
    return drawn


def plotly_map(head_map: HeadMap, example: AttentionExample) -> Any:
    """Return an attention map with its tokens on both axes and a colour bar."""
    import plotly.graph_objects as go

    tokens, places = example.tokens, thinned(example)
    names = [f"{i} {token}" for i, token in enumerate(tokens)]  # of categories, each once
    weights = [[None if w != w else w for w in row] for row in head_map.weights.tolist()]
    drawn = go.Figure(
        go.Heatmap(
            z=weights,
            x=names,
            y=names,
            zmin=-MAP_LIMIT,
            zmax=MAP_LIMIT,
            colorscale=COLOUR_SCALE,
            colorbar={"thickness": 10, "len": 0.9, "tickfont": {"size": 9}},
            hovertemplate="%{y} → %{x}: %{z:.3f}<extra></extra>",
        )
    )
    ticks = {"tickvals": places, "ticktext": [tokens[i] for i in places], "tickfont": {"size": 9}}
    axis = {"type": "category", "tickmode": "array", "showgrid": False, **ticks}
    drawn.update_xaxes(**axis, tickangle=90)
    drawn.update_yaxes(**axis, autorange="reversed")
    T, answer = len(tokens), example.answer
    drawn.add_vrect(answer[0] - 0.5, answer[-1] + 0.5, line={"color": COLOURS[2], "width": 1.5})
    drawn.add_hrect(T - 1.5, T - 0.5, line={"color": "black", "width": 1})
    drawn.update_layout(
        title={"text": example.title(head_map), "font": {"size": 12}},
        template="plotly_white",
        plot_bgcolor=NOT_VISIBLE,
        height=340,
        margin={"l": 45, "r": 5, "t": 40, "b": 45},
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
        fill = {"color": colour, "pattern": {"shape": style(PLOTLY_PATTERNS, i)}, "opacity": 0.75}
        group = str(i)
        drawn.add_trace(
            go.Bar(x=x, y=y, name=name, error_y=error_bars, marker=fill, offsetgroup=group)
        )
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


def _dots(drawn: Any, i: int, points: list[tuple[Any, Interval]], seeds: Sequence[int]) -> None:
    """Add the values of each seed."""
    import plotly.graph_objects as go

    found = [
        (x, value, seeds[k] if k < len(seeds) else k)
        for x, interval in points
        for k, value in enumerate(interval.by_seed or ())
    ]
    drawn.add_trace(
        go.Scatter(
            x=[x for x, _, _ in found],
            y=[value for _, value, _ in found],
            text=[f"seed {seed}" for _, _, seed in found],
            hovertemplate="%{text}: %{y:.3g}<extra></extra>",
            mode="markers",
            marker=SEED_DOTS,
            offsetgroup=str(i),
            showlegend=False,
        )
    )


def _heatmap(drawn: Any, heatmap: Heatmap, limit: float) -> None:
    import plotly.graph_objects as go

    drawn.add_trace(
        go.Heatmap(
            z=heatmap.values,
            x=heatmap.columns,
            y=heatmap.rows,
            zmin=-limit,
            zmax=limit,
            colorscale=COLOUR_SCALE,
            text=[[f"{v:+.3f}" for v in row] for row in heatmap.values],
            texttemplate="%{text}",
        )
    )
    drawn.update_xaxes(type="category")
    drawn.update_yaxes(type="category")
