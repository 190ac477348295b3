"""Scores before and after training, as rows with intervals."""

from typing import Any

import numpy as np

from antiphase.analysis.before_after import ModelScores
from antiphase.analysis.statistics import example_interval

ROWS = {
    "loss of held-out text, nats": "loss",
    "needles found": "correct",
    "attention to the needle": "answer",
    "attention to irrelevant tokens": "noise",
    "attention to the first token": "sink",
}
COLUMNS = ["", "before", "after", "change"]


def change_rows(before: ModelScores, after: ModelScores) -> list[list[str]]:
    """Return one row per measure: before, after and the change, over examples; then by depth."""
    rows = []
    for title, name in ROWS.items():
        sides = [getattr(before, name), getattr(after, name)]
        change = sides[1] - sides[0]
        rows.append([title, *(str(example_interval(v)) for v in (*sides, change))])
        if name == "loss":
            sizes = [float(np.exp(np.mean(v))) for v in sides]
            rows.append(["perplexity", *(f"{p:.4g}" for p in sizes), f"{sizes[1] - sizes[0]:+.3g}"])
    for depth in sorted(set(before.depth.tolist())):
        means = [float(m.correct[m.depth == depth].mean()) for m in (before, after)]
        title = f"needles found at depth {depth:g}"
        rows.append([title, *(f"{m:.3g}" for m in means), f"{means[1] - means[0]:+.3g}"])
    return rows


def result_rows(results: dict[str, Any]) -> list[list[str]]:
    """Return the rows of one run, with the decoding speeds if they were measured."""
    rows = change_rows(*before_and_after(results))
    if "tokens_per_second" in results:
        rows.append(_speed_row(*results["tokens_per_second"]))
    return rows


def _speed_row(before: float, after: float) -> list[str]:
    return ["decoding, tokens/s", f"{before:.3g}", f"{after:.3g}", f"{after / before:.3g} x"]


def before_and_after(results: dict[str, Any]) -> tuple[ModelScores, ModelScores]:
    """Return the scores before and after, from a run's results."""
    return ModelScores.from_json(results["before"]), ModelScores.from_json(results["after"])
