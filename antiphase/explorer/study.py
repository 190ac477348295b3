"""The study view: the verdicts of a study, what stands behind each, and the models of its arms."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from antiphase.analysis.statistics import Interval
from antiphase.experiments.report.interactive import plotly_panels
from antiphase.experiments.report.rows import (
    GATE_COLUMNS,
    Finding,
    ReportCell,
    by_seed_text,
    cell_text,
    command,
    finding,
    gate_rows,
    heading,
    prediction_table,
    ran,
    status_line,
)
from antiphase.experiments.results import PUBLISHED, Result, Study, load_study
from antiphase.experiments.verdicts import READINGS, Verdict
from antiphase.explorer.models import ModelEntry

# Seed 100 of these arms of the published study ships with the package (models/shipped/README.md).
SHIPPED_ARMS = {"standard": "standard", "V1": "diff_v1", "V2": "diff_v2"}


class StudyView:
    """A study for the page.

    Args:
        folder: of the study; None for the published one.

    Raises:
        ValueError: the folder holds no study that can be read.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self.study: Study = load_study(folder or PUBLISHED)

    def entries(self) -> list[ModelEntry]:
        """Return the trained models in the study's folder, one per arm and seed."""
        found: dict[str, ModelEntry] = {}
        for result in ran(self.study) if self.folder else ():
            for arm, seed, run in self._runs(result):
                name = f"{arm}, seed {seed}"
                if any(run.glob("model/*.safetensors")):
                    found.setdefault(name, ModelEntry(name, str(run), run, name))
        return list(found.values())

    def _runs(self, result: Result) -> list[tuple[str, int, Path]]:
        """Return arm, seed and folder of each run that a test was measured on.

        `keys` has the test's version first, then the runs of each arm, seed by seed.
        """
        assert self.folder is not None
        places = [(arm, seed) for arm in result.arms for seed in result.seeds]
        keys = result.keys[1:]
        root = (self.folder / "trained").resolve()
        runs = [root / key for key in keys if Path(key).name == key]  # a name, not a path
        if not len(places) == len(keys) == len(runs):
            return []
        return [(arm, seed, run) for (arm, seed), run in zip(places, runs, strict=True)]

    def table(self) -> dict[str, Any]:
        """Return the table of verdicts: a row per test, a column per reading."""
        rows = [
            {
                "test": result.number,
                "title": heading(result),
                "question": result.question,
                "cells": [
                    _shown(finding(self.study, result, reading)) if reading else None
                    for reading in READINGS
                ],
            }
            for result in ran(self.study)
        ]
        return {
            "name": "the published study" if self.folder is None else self.folder.name,
            "status": status_line(self.study),
            "readings": [{"name": n, "says": says} for n, says in READINGS.items()],
            "rows": rows,
        }

    def test(self, number: int, models: Mapping[str, ModelEntry]) -> dict[str, Any]:
        """Return what stands behind the verdicts of a test.

        Args:
            number: of the test.
            models: that can be opened.

        Raises:
            ValueError: the study has not run such a test.
        """
        result = next((r for r in ran(self.study) if r.number == number), None)
        if result is None:
            numbers = ", ".join(str(r.number) for r in ran(self.study))
            raise ValueError(f"test: got {number}, the study has {numbers}")
        columns, rows = prediction_table(self.study, result)
        figures = [
            json.loads(panel.to_json())
            for figure in result.figures
            for panel in plotly_panels(figure, result.seeds, result.figures)
        ]
        return {
            "test": number,
            "title": heading(result),
            "question": result.question,
            "notes": result.notes,
            "predictions": _table(columns, rows, result.seeds),
            "readings": [prediction.reading for prediction in result.predictions],
            "gates": _table(GATE_COLUMNS, gate_rows(result), result.seeds),
            "by_seed": _by_seed(result),
            "figures": figures,
            "arms": [
                {"name": arm, "recipe": recipe, "models": self._models(result, arm, models)}
                for arm, recipe in result.arms.items()
            ],
            "command": command(result),
        }

    def _models(self, result: Result, arm: str, models: Mapping[str, ModelEntry]) -> list[str]:
        """Return the names of an arm's models that can be opened."""
        if self.folder is None:
            name = SHIPPED_ARMS.get(arm, "")
            return [name] if name in models else []
        names = [f"{arm}, seed {seed}" for seed in result.seeds]
        return [name for name in names if name in models]


def _shown(found: Finding | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {"verdict": found.verdict.value, "text": str(found)}


def _table(
    columns: Sequence[str], rows: Sequence[Sequence[ReportCell]], seeds: Sequence[int]
) -> dict[str, Any]:
    return {"columns": list(columns), "rows": [[_cell(c, seeds) for c in row] for row in rows]}


def _cell(cell: ReportCell, seeds: Sequence[int]) -> dict[str, str]:
    found = {"text": cell_text(cell)}
    if isinstance(cell, Verdict):
        found["verdict"] = cell.value
    if isinstance(cell, Interval):
        found["note"] = by_seed_text(cell, seeds)
    return found


def _by_seed(result: Result) -> dict[str, Any]:
    """Return the mean of every seed, of each effect that was measured."""
    rows: list[list[ReportCell]] = [
        [str(effect), *(f"{value:.3g}" for value in interval.by_seed)]
        for effect, interval in result.effects.items()
        if interval.by_seed is not None and len(interval.by_seed) == len(result.seeds)
    ]
    return _table(["effect", *(f"seed {seed}" for seed in result.seeds)], rows, ())
