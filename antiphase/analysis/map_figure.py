"""The front-page figure: standard attention, A1, A2 and their difference on one sequence.

Drawn by matplotlib from two trained models, on a sequence of the needle task. Above, the complete
attention maps of one retrieval head; below, the row that has to find the answer.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from antiphase.analysis.capture import CapturedMaps, capture
from antiphase.analysis.ground_truth import GroundTruth, ground_truth
from antiphase.analysis.metrics.allocation import allocation
from antiphase.analysis.palette import COLOURS, diverging_colormap
from antiphase.analysis.targets import training_recipe
from antiphase.models.locate import locate_model
from antiphase.tasks import task as task_of

LENGTH = 22  # short, so that every token can be labelled
DEPTH = 0.45  # of the queried needle, away from both ends
LIMIT = 0.5  # weights beyond this have the strongest colour
POSITIVE, NEGATIVE, ANSWER = COLOURS[0], COLOURS[1], COLOURS[2]


@dataclass(frozen=True)
class _Panel:
    title: str
    A: NDArray[np.float32]  # [T, T]
    on_answer: float  # fraction of |A| on R in the query row


@dataclass(frozen=True)
class _Sequence:
    """A sequence up to its query; the token to predict comes after it."""

    ids: Tensor  # [1, T]
    words: list[str]  # of the T tokens, then of the token to predict
    truth: GroundTruth  # of one row

    @property
    def row(self) -> int:
        """Return the position of the query, which has to predict the answer: the last."""
        return self.ids.shape[1] - 1

    @property
    def answer(self) -> list[int]:
        """Return the positions of the queried key and its value."""
        return self.truth.relevant[0, 0].nonzero()[:, 0].tolist()


def draw_map_figure(
    path: Path,
    *,
    standard: str = "standard",
    differential: str = "diff_v1",
    example: int = 0,
    seed: int = 0,
) -> Path:
    """Draw the attention maps of a standard and of a differential model on one sequence.

    Of each model the retrieval head is drawn: the head with the largest fraction of |A| on the
    answer in the query row. Titles give its layer and this fraction.

    Args:
        path: the image to write; its ending decides the format. Folders are created.
        standard: a model with one map per head: a shipped name, a run folder or a model folder,
            trained on the needle task.
        differential: a model with two maps per head, trained on the same task.
        example: index of the example in the test split.
        seed: seed of the examples.

    Returns:
        The path.

    Raises:
        ValueError: a model was not trained on the needle task, the two were trained with different
            options of it, `standard` has two maps per head, or `differential` has one.
    """
    disable_progress_bar()  # of loading the two small models
    sequence = _sequence(_task_options(standard, differential), example, seed)
    one = _panels(standard, sequence)
    two = _panels(differential, sequence)
    if len(one) != 1:
        raise ValueError(f"standard: got {standard}, which has two maps per head; give one map")
    if len(two) != 3:
        raise ValueError(f"differential: got {differential}, which has no noise map")
    _draw([*one, *two], sequence, path)
    return path


def _task_options(*names: str) -> dict[str, Any]:
    """Return the options of the needle task that both models were trained on."""
    found = []
    for name in names:
        recipe = training_recipe(Path(locate_model(name)))
        if recipe is None or recipe.task != "needle":
            raise ValueError(f"{name}: was not trained on the needle task; give a run that was")
        changes = {"length": LENGTH, "depth": DEPTH, "repeats": 0, "queried": 1}
        found.append({**recipe.task_options, **changes})
    if found[0] != found[1]:
        raise ValueError(
            f"{' and '.join(names)}: were trained with different options of the needle task "
            f"({found[0]} and {found[1]}); give two models of the same task"
        )
    return found[0]


def _sequence(options: dict[str, Any], example: int, seed: int) -> _Sequence:
    task = task_of("needle")(split="test", size=example + 1, seed=seed, **options)
    batch = task.examples([example])
    truth = ground_truth(batch)
    T = int(truth.rows[0, 0]) + 1
    kinds = (truth.relevant[..., :T], truth.sink[..., :T], truth.irrelevant[..., :T])
    words = [task.id_to_token[token] for token in batch.tokens[0, : T + 1]]
    ids = torch.from_numpy(batch.tokens[:, :T])
    return _Sequence(ids, words, GroundTruth(truth.rows, *kinds, truth.depth))


def _panels(name: str, sequence: _Sequence) -> list[_Panel]:
    """Return the maps of a model's retrieval head: A1, A2 and the difference, or only one."""
    model = AutoModelForCausalLM.from_pretrained(locate_model(name)).eval()
    captured = capture(model, sequence.ids, "all")
    layer, head = _retrieval_head(captured, sequence)
    m = captured.layers[layer]
    mechanism, place = model.config.attention, f"layer {layer}, head {head}"
    if m.noise is None:
        return [_panel(f"{mechanism} attention\n{place}", m.difference[0, head], sequence)]
    assert m.lam is not None
    lam = float(m.lam[0, head, sequence.row])
    return [
        _panel(f"{mechanism}: signal map $A_1$\n{place}", m.signal[0, head], sequence),
        _panel(f"noise map $A_2$\n{place}", m.noise[0, head], sequence),
        _panel(
            f"difference $A_1 - \\lambda A_2$\n$\\lambda$ = {lam:.2f}",
            m.difference[0, head],
            sequence,
        ),
    ]


def _retrieval_head(captured: CapturedMaps, sequence: _Sequence) -> tuple[int, int]:
    """Return layer and head with the largest fraction of |A| on the answer."""
    fractions = torch.stack(
        [_fractions(m.difference, sequence) for m in captured.layers]
    )  # [layers, h]
    best = int(fractions.argmax())
    return best // fractions.shape[1], best % fractions.shape[1]


def _fractions(A: Tensor, sequence: _Sequence) -> Tensor:
    """Return the fraction of |A| on the answer in the query row per head; A is [1, h, T, T]."""
    row = A[:, :, sequence.row : sequence.row + 1]
    return allocation(row, sequence.truth)["relevant"][0, :, 0]


def _panel(title: str, A: Tensor, sequence: _Sequence) -> _Panel:
    return _Panel(title, A.numpy(), float(_fractions(A[None, None], sequence)[0]))


def _draw(panels: list[_Panel], sequence: _Sequence, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    colours = diverging_colormap()
    figure, axes = plt.subplots(
        2,
        len(panels),
        figsize=(10, 5.4),
        layout="constrained",
        gridspec_kw={"height_ratios": (3, 1.9)},
    )
    image = None
    for column, panel in enumerate(panels):
        image = _draw_map(axes[0, column], panel, sequence, colours)
        _draw_row(axes[1, column], panel, sequence)
    weights = np.stack([panel.A[sequence.row] for panel in panels])
    for axis in axes[1]:
        axis.set_ylim(min(1.15 * float(weights.min()), -0.02), 1.02)
    for axis in axes[:, 1:].flat:
        axis.tick_params(labelleft=False)
    axes[1, 0].set_ylabel("weights of the last row", fontsize=9)
    axes[1, 0].tick_params(axis="y", labelsize=8)
    bar = figure.colorbar(image, ax=list(axes[0]), extend="both", pad=0.01, aspect=30)
    bar.set_label("attention weight", fontsize=9)
    bar.ax.tick_params(labelsize=8)
    query, value = sequence.words[-2:]
    figure.suptitle(
        f"Attention maps on one sequence. The last token, {query}, asks for the value that "
        f"followed {query} earlier: {value} (green)\n",
        fontsize=10.5,
    )
    figure.supxlabel(
        "Percentages: fraction of the last row's |weight| on the answer. Grey: future tokens.",
        fontsize=8,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=200, facecolor="white")  # opaque: readable on dark pages, too
    plt.close(figure)


def _draw_map(axis: Any, panel: _Panel, sequence: _Sequence, colours: Any) -> Any:
    """Draw a map; frame the answer's columns and the query row."""
    from matplotlib.patches import Rectangle

    T = sequence.row + 1
    image = axis.imshow(panel.A, cmap=colours, vmin=-LIMIT, vmax=LIMIT, interpolation="nearest")
    future = np.triu(np.ones((T, T)), 1)
    axis.imshow(np.where(future, 0.9, np.nan), cmap="gray", vmin=0, vmax=1)
    first, last = sequence.answer[0], sequence.answer[-1]
    columns = Rectangle((first - 0.5, -0.5), last - first + 1, T, fill=False, ec=ANSWER, lw=1.6)
    axis.add_patch(columns)
    axis.add_patch(Rectangle((-0.5, T - 1.5), T, 1, fill=False, ec="black", lw=1.2))
    axis.set_title(panel.title, fontsize=9.5)
    middle = (first + last) / 2
    names = [sequence.words[i] for i in sequence.answer]
    places = [0, middle, sequence.row]
    labels = [sequence.words[0], " ".join(names), sequence.words[sequence.row]]
    axis.set_yticks(places, labels, fontsize=8, rotation=90, va="center")
    axis.set_xticks(places, labels, fontsize=8)
    for ticks in (axis.get_xticklabels(), axis.get_yticklabels()):
        ticks[1].set(color=ANSWER, weight="bold")
    return image


def _draw_row(axis: Any, panel: _Panel, sequence: _Sequence) -> None:
    """Draw the weights of the query row, with every token's name."""
    T = sequence.row + 1
    weights = panel.A[sequence.row]
    colours = [
        ANSWER if i in sequence.answer else (POSITIVE if weight >= 0 else NEGATIVE)
        for i, weight in enumerate(weights)
    ]
    axis.bar(range(T), weights, color=colours, width=0.85)
    axis.axhline(0, color="black", lw=0.6)
    axis.set_xlim(-0.5, T - 0.5)
    axis.set_title(
        f"{panel.on_answer:.0%} on the answer", fontsize=9.5, color=ANSWER, weight="bold"
    )
    axis.set_xticks(range(T), sequence.words[:T], rotation=90, fontsize=6.5)
    for i in sequence.answer:
        axis.get_xticklabels()[i].set(color=ANSWER, weight="bold")
