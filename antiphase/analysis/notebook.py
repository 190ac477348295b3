"""The attention of a model on a text, inline in a notebook: two plotly figures.

    from antiphase.analysis import show
    show("diff_v1", "<bos> f3 key2 val7 f1 decoy5 val1 f4 key2")

The first figure has the tokens as text, coloured by the attention of one row; its slider moves the
row. The second has the maps of a head; its menu chooses the head.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from antiphase.analysis.capture import LayerMaps, capture
from antiphase.analysis.palette import DIVERGING
from antiphase.analysis.targets import training_recipe
from antiphase.models.locate import locate_model
from antiphase.tasks import task as task_of

COLUMNS = 16  # tokens in a line of text
MAX_TOKENS = 256
MAP_WEIGHTS = 2**21  # of all heads whose maps go into one figure
# as in the explorer: the distance from white goes with the square root of a weight
STEPS = np.linspace(-1, 1, 21)
Weights = NDArray[np.float64]


@dataclass(frozen=True)
class Shown:
    """Two plotly figures; a notebook shows both.

    Attributes:
        sequence: the tokens, coloured by the attention of a row.
        map: the complete maps of a head.
    """

    sequence: Any
    map: Any

    def _ipython_display_(self) -> None:
        self.sequence.show()
        self.map.show()


def show(
    model: PreTrainedModel | str,
    text: str,
    *,
    tokenizer: Any = None,
    layer: int = -1,
    head: int = 0,
) -> Shown:
    """Show where the attention of a model goes on a text, in a notebook.

    Args:
        model: a shipped model, `smollm2`, a folder or a hub name; or a loaded model.
        text: for models of a synthetic task, its tokens with spaces between.
        tokenizer: of the model; default: the one beside its weights.
        layer: of the head whose rows colour the tokens, and of the first map.
        head: its number in the layer.

    Returns:
        Figures of the tokens and of the maps: signal A1, noise A2, lam A2 and A1 - lam A2, or one
        map. Of models with many heads, the map's menu has those of the chosen layer only.

    Raises:
        ValueError: a token, layer or head that the model does not have, or a text that is too long.
    """
    model, source = _loaded(model)
    ids, tokens = _tokens(model, source, text, tokenizer)
    layers = capture(model, ids, "all").layers
    if not -len(layers) <= layer < len(layers):
        raise ValueError(f"layer: got {layer}, the model has the layers 0 to {len(layers) - 1}")
    layer %= len(layers)
    h = layers[layer].signal.shape[1]
    if not 0 <= head < h:
        raise ValueError(f"head: got {head}, layer {layer} has the heads 0 to {h - 1}")
    weights = sum(m.signal.numel() for m in layers) * len(_named(layers[layer], 0))
    chosen = range(len(layers)) if weights <= MAP_WEIGHTS else [layer]
    return Shown(
        _sequence_figure(_named(layers[layer], head), tokens, f"layer {layer}, head {head}"),
        _map_figure({i: layers[i] for i in chosen}, tokens, layer, head),
    )


def _loaded(model: PreTrainedModel | str) -> tuple[Any, str]:
    """Return the model, and the folder or hub name that it came from."""
    if not isinstance(model, str):
        return model, str(getattr(model, "name_or_path", ""))
    source = locate_model(model)
    disable_progress_bar()
    return AutoModelForCausalLM.from_pretrained(source).eval(), source


def _tokens(model: Any, source: str, text: str, tokenizer: Any) -> tuple[torch.Tensor, list[str]]:
    """Return token ids [1, T] and token strings."""
    recipe = training_recipe(Path(source)) if tokenizer is None and source else None
    if recipe is not None and recipe.task != "language":
        names = task_of(recipe.task)(split="test", size=1, **recipe.task_options).id_to_token
        tokens = text.split()
        if unknown := [token for token in tokens if token not in names]:
            raise ValueError(
                f"text: {unknown[0]!r} is no token of {source}; its tokens are "
                f"{', '.join(names[:4])}, ..., {names[-1]}"
            )
        ids = [names.index(token) for token in tokens]
    else:
        if tokenizer is None:
            try:
                tokenizer = AutoTokenizer.from_pretrained(source)
            except (OSError, ValueError) as error:
                raise ValueError(
                    "tokenizer: the model has none beside its weights; give one"
                ) from error
        ids = list(tokenizer(text)["input_ids"])
        tokens = [tokenizer.decode([i]) for i in ids]
    if not 2 <= len(ids) <= MAX_TOKENS:
        raise ValueError(f"text: has {len(ids)} tokens, expected 2 to {MAX_TOKENS}")
    return torch.tensor([ids]), tokens


def _named(m: LayerMaps, head: int) -> dict[str, Weights]:
    """Return the maps of a head by the name that figures use, [T, T]."""
    if m.noise is None or m.lam is None:
        return {"A": m.difference[0, head].double().numpy()}
    found = {"A1": m.signal, "A2": m.noise, "lam A2": m.lam * m.noise, "A1 - lam A2": m.difference}
    return {name: A[0, head].double().numpy() for name, A in found.items()}


def _colours() -> list[list[Any]]:
    """Return plotly's scale: the palette, by the square root of the weight."""
    ends = [[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in DIVERGING]

    def mixed(x: float) -> str:
        end, t = ends[0] if x < 0 else ends[2], abs(x) ** 0.5
        parts = (round(zero + t * (far - zero)) for zero, far in zip(ends[1], end, strict=True))
        return f"rgb({','.join(map(str, parts))})"

    return [[float((x + 1) / 2), mixed(float(x))] for x in STEPS]


def _plain(tokens: list[str]) -> list[str]:
    """Return tokens as plotly shows them literally: it reads some markup."""
    return [token.replace("&", "&amp;").replace("<", "&lt;").replace("\n", "⏎") for token in tokens]


def _sequence_figure(maps: dict[str, Weights], tokens: list[str], where: str) -> Any:
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    shown = {name: A for name, A in maps.items() if name != "A2"}
    T, names = len(tokens), _plain(tokens)
    lines = -(-T // COLUMNS)
    width = min(T, COLUMNS)

    def wrapped(values: list[Any], filler: Any) -> list[list[Any]]:
        padded = [*values, *[filler] * (lines * width - T)]
        return [padded[i * width : (i + 1) * width] for i in range(lines)]

    def row_of(A: Weights, row: int) -> list[list[Any]]:
        weights = [round(float(w), 5) if i <= row else None for i, w in enumerate(A[row])]
        return wrapped(weights, None)

    figure = make_subplots(
        len(shown), 1, subplot_titles=list(shown), vertical_spacing=0.25 / (lines + 1)
    )
    limit = max(float(np.abs(A[1:]).max()) for A in shown.values())
    for place, A in enumerate(shown.values(), start=1):
        figure.add_trace(
            go.Heatmap(
                z=row_of(A, T - 1),
                text=wrapped(names, ""),
                texttemplate="%{text}",
                hovertemplate="%{text}: %{z:.4f}<extra></extra>",
                coloraxis="coloraxis",
                xgap=1,
                ygap=1,
            ),
            place,
            1,
        )
    steps = [
        {
            "method": "restyle",
            "args": [{"z": [row_of(A, row) for A in shown.values()]}],
            "label": f"{row} {names[row]}",
        }
        for row in range(T)
    ]
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False, autorange="reversed")
    figure.update_layout(
        title={"text": f"attention of one token: {where}", "font": {"size": 14}},
        coloraxis={"colorscale": _colours(), "cmin": -limit, "cmax": limit},
        sliders=[{"active": T - 1, "steps": steps, "currentvalue": {"prefix": "query: "}}],
        template="plotly_white",
        height=150 + len(shown) * (34 * lines + 40),
        margin={"l": 10, "r": 10, "t": 60, "b": 10},
    )
    return figure


def _map_figure(layers: dict[int, LayerMaps], tokens: list[str], layer: int, head: int) -> Any:
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    first = _named(layers[layer], head)
    names = [f"{i} {token}" for i, token in enumerate(_plain(tokens))]

    def weights(A: Weights) -> list[list[float | None]]:
        rows = np.round(A, 4).tolist()
        return [[w if j <= i else None for j, w in enumerate(row)] for i, row in enumerate(rows)]

    figure = make_subplots(1, len(first), subplot_titles=list(first), horizontal_spacing=0.02)
    for place, A in enumerate(first.values(), start=1):
        figure.add_trace(
            go.Heatmap(
                z=weights(A),
                x=names,
                y=names,
                coloraxis="coloraxis",
                hovertemplate="%{y} → %{x}: %{z:.4f}<extra></extra>",
            ),
            1,
            place,
        )
    heads = [(i, j) for i, m in layers.items() for j in range(m.signal.shape[1])]
    same = [(i, j) for i, j in heads if len(_named(layers[i], j)) == len(first)]
    menu = [
        {
            "method": "restyle",
            "args": [{"z": [weights(A) for A in _named(layers[i], j).values()]}],
            "label": f"layer {i}, head {j}",
        }
        for i, j in same
    ]
    figure.update_xaxes(showticklabels=len(tokens) <= 32, tickfont={"size": 8})
    figure.update_yaxes(showticklabels=False, autorange="reversed")
    figure.update_yaxes(showticklabels=len(tokens) <= 32, tickfont={"size": 8}, col=1)
    figure.update_layout(
        coloraxis={"colorscale": _colours(), "cmin": -0.5, "cmax": 0.5},
        updatemenus=[
            {
                "buttons": menu,
                "active": same.index((layer, head)),
                "x": 0,
                "xanchor": "left",
                "y": 1.3,
            }
        ],
        template="plotly_white",
        height=380 if len(first) > 1 else 480,
        margin={"l": 60, "r": 10, "t": 90, "b": 60},
    )
    return figure
