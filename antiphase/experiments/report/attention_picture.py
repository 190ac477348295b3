"""One picture for newcomers: where each mechanism's attention goes on the same sequence."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphase.analysis.palette import COLOURS
from antiphase.experiments.attention_example import AttentionExample, AttentionRow

SIGNAL, NOISE, ANSWER, USED = COLOURS[5], COLOURS[4], COLOURS[2], COLOURS[0]
LABELLED = 110  # tokens; in longer sequences only question and answer have labels
TICKS = (-0.5, -0.2, -0.05, 0, 0.05, 0.2, 0.5, 1)


def picture_caption(example: AttentionExample) -> str:
    """Say what the picture shows, in words that need no others."""
    key = _words(example, example.query)
    return (
        "The sequence is a list of keys, each followed by its value. It ends with the question "
        f"{key}: which value followed {key} before? The answer, {example.target}, stands in the "
        "green band; all other tokens only distract. A bar is the attention weight that the "
        "question gives to a token, as a mean over the heads that retrieve, on a square-root scale "
        "that shows the many small weights, too. V1 and V2 compute two attention maps and subtract "
        "lam times the second; what is left may be negative. Percentages: fraction of all |weight| "
        f"on the answer. An illustration, no evidence: {example.source}."
    )


def draw_attention(example: AttentionExample, path: Path, *, narrow: bool = False) -> None:
    """Draw the attention weights of the question's row, one panel per mechanism.

    Args:
        example: to draw.
        path: the image to write; its ending decides the format.
        narrow: draw for the width of a phone.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    count = len(example.rows)
    size = (4.3, 1.35 + 1.75 * count) if narrow else (11, 1.75 + 1.75 * count)
    figure, axes = plt.subplots(
        count, 1, figsize=size, sharex=True, squeeze=False, layout="constrained"
    )
    limits = _limits(example)
    for axis, row in zip(axes[:, 0], example.rows, strict=True):
        axis.set_yscale("function", functions=(_root, _square))
        _panel(axis, row, example, narrow)
        axis.set_ylim(limits)
        axis.set_yticks([tick for tick in TICKS if limits[0] <= tick <= limits[1]])
    _mark(axes[0, 0], example)
    _token_labels(axes[-1, 0], example, narrow)
    question = (
        f"{'W' if narrow else 'w'}hich value followed {_words(example, example.query)} before?"
    )
    title = "Where does attention go?" + ("\n" if narrow else " One sequence, one question: ")
    figure.suptitle(title + question, fontsize=10 if narrow else 13, weight="bold")
    _legend(figure, narrow)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=170 if narrow else 130, facecolor="white")
    plt.close(figure)


def _root(y: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.sign(y) * np.sqrt(np.abs(y))


def _square(y: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.sign(y) * np.square(y)


def _limits(example: AttentionExample) -> tuple[float, float]:
    """Return the same ends of the axis for all panels, with room for text."""
    every = [[*row.signal, *row.difference, *(-w for w in row.noise or [])] for row in example.rows]
    weights = [w for row in every for w in row]
    return 1.2 * min(0.0, *weights), 1.5 * max(weights)


def _words(example: AttentionExample, places: list[int]) -> str:
    return " ".join(example.tokens[i] for i in places)


def _panel(axis: Any, row: AttentionRow, example: AttentionExample, narrow: bool) -> None:
    """Draw A1 upwards, lam A2 downwards and their difference in front."""
    places = range(len(example.tokens))
    answer = set(example.answer)
    if row.noise is not None:
        axis.bar(places, row.signal, width=0.95, color=SIGNAL, alpha=0.55)
        axis.bar(places, [-w for w in row.noise], width=0.95, color=NOISE, alpha=0.6)
    used = [ANSWER if i in answer else USED for i in places]
    axis.bar(places, row.difference, width=0.5 if row.noise is not None else 0.8, color=used)
    axis.axhline(0, color="black", lw=0.6)
    axis.axvspan(min(answer) - 0.5, max(answer) + 0.5, color=ANSWER, alpha=0.12, lw=0)
    query = example.query
    axis.axvspan(query[0] - 0.5, query[-1] + 0.5, color="black", alpha=0.1, lw=0)
    axis.set_xlim(-0.7, len(example.tokens) - 0.3)
    maps = "one map" if row.noise is None else "two maps, the second is subtracted"
    right = row.predicted == example.target
    said = f"model answers {row.predicted}, {'correct' if right else 'wrong'}"
    size = 8.5 if narrow else 10
    axis.set_title(row.arm if narrow else f"{row.arm}: {maps}", fontsize=size, loc="left")
    axis.set_title(
        f"{row.on_answer:.0%} of its weight on the answer" + ("" if narrow else f"; {said}"),
        fontsize=size,
        loc="right",
        color=ANSWER,
        weight="bold",
    )
    axis.tick_params(axis="y", labelsize=7.5)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    if not narrow:
        axis.set_ylabel("attention weight", fontsize=8)


def _mark(axis: Any, example: AttentionExample) -> None:
    """Name the answer and the question in the first panel."""
    label = {"fontsize": 8.5, "va": "top", "ha": "right", "weight": "bold"}
    top = 0.95 * axis.get_ylim()[1]
    axis.text(min(example.answer) - 1, top, "the answer", color=ANSWER, **label)
    axis.text(min(example.query) - 1, top, "the question", **label)


def _token_labels(axis: Any, example: AttentionExample, narrow: bool) -> None:
    T = len(example.tokens)
    if narrow or T > LABELLED:
        groups = (example.answer, example.query)
        axis.set_xticks([float(np.mean(g)) for g in groups], [_words(example, g) for g in groups])
        axis.set_xlabel(f"the {T} tokens of the sequence", fontsize=8)
        labels = dict(zip([g[0] for g in groups], axis.get_xticklabels(), strict=True))
    else:
        axis.set_xticks(range(T), example.tokens, rotation=90, fontsize=6.5)
        labels = dict(enumerate(axis.get_xticklabels()))
    for place, label in labels.items():
        if place in example.answer or place in example.query:
            colour = ANSWER if place in example.answer else "black"
            label.set(weight="bold", color=colour, fontsize=8)


def _legend(figure: Any, narrow: bool) -> None:
    from matplotlib.patches import Patch

    handles = [
        Patch(color=ANSWER, label="weight in use, on the answer"),
        Patch(color=USED, label="weight in use, on other tokens"),
        Patch(color=SIGNAL, alpha=0.55, label="first map, A1"),
        Patch(color=NOISE, alpha=0.6, label="second map, lam A2, drawn downwards"),
    ]
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=1 if narrow else 4,
        fontsize=8,
        frameon=False,
    )
