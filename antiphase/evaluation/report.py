"""Tables, JSON and a page from evaluations: one model, or two side by side."""

import importlib.metadata
import json
import math
import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphase.cache_folder import write_private
from antiphase.evaluation.bootstrap import Estimate, estimate, paired_difference
from antiphase.evaluation.evaluate import EvaluationOptions, ModelEvaluation, common_rows
from antiphase.evaluation.suite.registry import BENCHMARKS, Measure
from antiphase.json_values import json_ready
from antiphase.markdown import markdown_table

RESULTS = "results.json"
PAGE = "README.md"
PICTURE = "needle.png"


def summarise(evaluations: Sequence[ModelEvaluation], options: EvaluationOptions) -> dict[str, Any]:
    """Return all measures of one or two models, as plain values.

    Args:
        evaluations: one, or two of the same tasks.
        options: that they were made with.

    Returns:
        `models`, `options`, `versions`, and per task `items`, `skipped` (by model) and `measures`:
        an estimate per model, and of two models the `difference`, second minus first. None is a
        number that the items do not determine.
    """
    tasks = {}
    for task in options.tasks:
        tables = common_rows(evaluations, task)
        measures = {}
        for measure in BENCHMARKS[task].measures:
            rows = [_matrix(measure, list(table.values())) for table in tables]
            found: dict[str, Any] = {
                "models": [asdict(estimate(measure.statistic, r)) for r in rows],
                "higher_is_better": measure.higher_is_better,
            }
            if len(rows) == 2:
                found["difference"] = asdict(paired_difference(measure.statistic, rows[0], rows[1]))
            measures[measure.name] = found
        tasks[task] = {
            "items": len(tables[0]),
            "skipped": [len(e.tasks[task].skipped) for e in evaluations],
            "measures": measures,
        }
    summary: dict[str, Any] = {
        "models": [
            {"name": e.name, "sha256": e.digest, "parameters": e.parameters, "context": e.context}
            for e in evaluations
        ],
        "options": asdict(options),
        "versions": {n: importlib.metadata.version(n) for n in ("lm_eval", "torch", "transformers")}
        | {"python": platform.python_version()},
        "tasks": tasks,
    }
    if "needle" in options.tasks:
        grids = [needle_grid(e) for e in evaluations]
        summary["needle"] = {
            "words": grids[0][0],
            "depths": grids[0][1],
            "found": [np.round(grid[2], 4).tolist() for grid in grids],
        }
    return json_ready(summary)


def needle_grid(evaluation: ModelEvaluation) -> tuple[list[int], list[float], NDArray[np.float64]]:
    """Return the lengths, the depths, and the fraction of needles found [lengths, depths]."""
    items = evaluation.tasks["needle"].items
    lengths = sorted({item["words"] for item in items})
    depths = sorted({item["depth"] for item in items})
    grid = np.full((len(lengths), len(depths)), math.nan)
    for i, words in enumerate(lengths):
        for j, depth in enumerate(depths):
            cell = [x for x in items if (x["words"], x["depth"]) == (words, depth)]
            if cell:
                grid[i, j] = float(np.mean([x["scores"]["found"] for x in cell]))
    return lengths, depths, grid


def table_columns(summary: dict[str, Any]) -> list[str]:
    """Return the columns of `table_rows`."""
    names = [model["name"] for model in summary["models"]]
    return ["task", "measure", *names, *(["difference"] if len(names) == 2 else []), "items"]


def table_rows(summary: dict[str, Any]) -> list[list[str]]:
    """Return one row per measure, with 95% intervals over items."""
    rows = []
    for task, found in summary["tasks"].items():
        for name, measure in found["measures"].items():
            cells = [*measure["models"]]
            if "difference" in measure:
                cells.append(measure["difference"])
            values = [str(_estimate(cell)) for cell in cells]
            arrow = {True: " ↑", False: " ↓", None: ""}[measure["higher_is_better"]]
            rows.append([task, name + arrow, *values, str(found["items"])])
    return rows


def skipped_lines(summary: dict[str, Any]) -> list[str]:
    """Say which items were left out because they do not fit into a model's context."""
    return [
        f"{task}: {count} items do not fit into the {model['context']} tokens of {model['name']}"
        for task, found in summary["tasks"].items()
        for model, count in zip(summary["models"], found["skipped"], strict=True)
        if count
    ]


def write_report(
    evaluations: Sequence[ModelEvaluation], options: EvaluationOptions, folder: Path
) -> dict[str, Any]:
    """Write results.json, README.md and, with matplotlib, needle.png; return the summary."""
    summary = summarise(evaluations, options)
    write_private(folder / RESULTS, json.dumps(summary, indent=1))
    drawn = "needle" in summary and _draw(summary, folder / PICTURE)
    lines = ["# Evaluation", "", markdown_table(table_columns(summary), table_rows(summary)), ""]
    lines += [f"{line}." for line in skipped_lines(summary)]
    if drawn:
        lines += ["", f"![needles found, by depth and length]({PICTURE})", ""]
    lines += ["", "Intervals: 95%, resampled over items (or over questions asked several times)."]
    write_private(folder / PAGE, "\n".join(lines) + "\n")
    return summary


def _estimate(cell: dict[str, Any]) -> Estimate:
    value, low, high = (
        math.nan if v is None else v for v in map(cell.get, ("value", "low", "high"))
    )
    return Estimate(value, low, high, cell["items"])


def _matrix(measure: Measure, rows: list[dict[str, float]]) -> NDArray[np.float64]:
    """Return the columns of a measure, without rows that have none of them."""
    matrix = np.array([[row.get(name, math.nan) for name in measure.columns] for row in rows])
    return matrix[~np.isnan(matrix).all(1)]


def _draw(summary: dict[str, Any], path: Path) -> bool:
    try:
        from antiphase.evaluation.needle_picture import draw_needles
    except ImportError:  # without matplotlib
        return False
    found = summary["needle"]
    names = [model["name"] for model in summary["models"]]
    draw_needles(names, found["words"], found["depths"], found["found"], path)
    return True
