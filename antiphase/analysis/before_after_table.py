"""Scores before and after training, as rows with intervals."""

from typing import Any

import numpy as np

from antiphase.analysis.before_after import SWITCHED_ON, ModelScores
from antiphase.analysis.statistics import example_interval
from antiphase.evaluation.report import table_rows

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
    """Return the rows of one run, with benchmarks and decoding speeds if they were measured."""
    rows = change_rows(*before_and_after(results))
    if "benchmarks" in results:
        rows += [[f"{task}: {name}", *v] for task, name, *v, _ in table_rows(results["benchmarks"])]
    if "tokens_per_second" in results:
        rows.append(_speed_row(*results["tokens_per_second"]))
    return rows


def operation_size(results: dict[str, Any]) -> float | None:
    """Return the size of DEX's operation, a fraction of the heads' output; None without DEX."""
    return float(np.mean(results["operation"])) if results["operation"] else None


def operation_line(results: dict[str, Any]) -> str | None:
    """Say how large DEX's operation is, and whether a change can be due to it; None without DEX."""
    size = operation_size(results)
    if size is None:
        return None
    line = f"operation: {100 * size:.3g}% of the heads' output"
    if size < SWITCHED_ON:
        line += f"; below {SWITCHED_ON:.0%}: it never switched on, so the change is not due to it"
    return line


def _speed_row(before: float, after: float) -> list[str]:
    return ["decoding, tokens/s", f"{before:.3g}", f"{after:.3g}", f"{after / before:.3g} x"]


def before_and_after(results: dict[str, Any]) -> tuple[ModelScores, ModelScores]:
    """Return the scores before and after, from a run's results."""
    return ModelScores.from_json(results["before"]), ModelScores.from_json(results["after"])
