"""The card of a run: what it was, how it ended, and its curve."""

import importlib.util
from pathlib import Path
from typing import Any

from antiphase.markdown import markdown_table
from antiphase.training.callbacks import read_metrics
from antiphase.training.criterion import criterion_of
from antiphase.training.recipe import Recipe

CARD = "README.md"


def final_scores(folder: Path) -> dict[str, float]:
    """Return the last held-out scores of a run."""
    scores: dict[str, float] = {}
    for line in read_metrics(folder):
        held_out = {
            k.removeprefix("held_out_"): v for k, v in line.items() if k.startswith("held_out_")
        }
        scores = held_out or scores
    return scores


def summary_row(folder: Path) -> dict[str, Any]:
    """Return the last scores and the median speed of a run, for a table."""
    rates = sorted(m["tokens_per_second"] for m in read_metrics(folder) if "tokens_per_second" in m)
    speed = rates[len(rates) // 2] if rates else float("nan")
    return final_scores(folder) | {"tokens_per_second": speed}


def write_run_card(folder: Path, recipe: Recipe, *sections: str) -> None:
    """Write README.md and, where matplotlib is installed, curve.png.

    Args:
        folder: of the run.
        recipe: of the run.
        *sections: Markdown that comes before the recipe's fields.
    """
    scores = [[name, f"{value:.4g}"] for name, value in final_scores(folder).items()]
    fields = [[name, f"`{value}`"] for name, value in recipe.as_dict().items()]
    skipped = sum("skipped" in line for line in read_metrics(folder))
    criterion = criterion_of(folder)
    drawn = draw_curves({folder.name: folder}, folder / "curve.png")
    parts = [
        f"# {recipe.title}",
        f"Held-out scores at step {recipe.steps if criterion is None else criterion.end}:",
        markdown_table(["score", "value"], scores),
        "" if criterion is None else f"Criterion: {criterion}.",
        f"**{skipped} steps were skipped** (`why` in metrics.jsonl)." if skipped else "",
        "![curve](curve.png)" if drawn else "",
        *sections,
        "Trained by `antiphase train` with `recipe.yaml`, on the machine in `environment.json`:",
        markdown_table(["field", "value"], fields),
    ]
    (folder / CARD).write_text("\n\n".join(filter(None, parts)) + "\n", encoding="utf-8")


def pyplot() -> Any | None:
    """Return matplotlib's pyplot for drawing into files, None where it is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        return None
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def draw_curves(runs: dict[str, Path], picture: Path) -> bool:
    """Draw the loss, and the held-out accuracy or loss, of runs.

    Args:
        runs: folders by name.
        picture: the PNG file to write.

    Returns:
        Whether it was drawn; not without matplotlib.
    """
    plt = pyplot()
    if plt is None:
        return False
    lines = {name: read_metrics(folder) for name, folder in runs.items()}
    tested = any("held_out_accuracy" in line for found in lines.values() for line in found)
    keys = {"loss": "training loss", "held_out_loss": "held-out loss"}
    if tested:
        keys = {"loss": "training loss", "held_out_accuracy": "held-out accuracy"}
    figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for axis, (key, title) in zip(axes, keys.items(), strict=True):
        for name, found in lines.items():
            points = [(line["step"], line[key]) for line in found if key in line]
            if points:
                axis.plot(*zip(*points, strict=True), label=name, linewidth=1.4)
        axis.set(xlabel="step", title=title)
        axis.grid(alpha=0.25)
    if len(runs) > 1:
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8)
    figure.savefig(picture, dpi=120)
    plt.close(figure)
    return True
