"""A study: train what the tests need, measure, judge, and keep every number."""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from transformers.utils.logging import disable_progress_bar

from antiphase.analysis.statistics import Interval, bootstrap
from antiphase.experiments.arms import Arm, Trained
from antiphase.experiments.engine import LocalEngine, train_all
from antiphase.experiments.experiment import (
    COMMON,
    SEEDS,
    STANDARD,
    V1,
    V2,
    Experiment,
    Heatmap,
    Measured,
    Picture,
    Shelf,
    Table,
)
from antiphase.experiments.published_claims import Claim, claims
from antiphase.experiments.registry import EXPERIMENTS
from antiphase.experiments.verdicts import Prediction, Verdict, overall
from antiphase.training.checkpoints import write_atomic
from antiphase.training.provenance import environment

RESULTS = "results.json"


@dataclass
class Result:
    """One test: what was predicted, what was found, what follows."""

    number: int
    title: str
    question: str
    predictions: list[Prediction]
    effects: dict[str, Interval] = field(default_factory=dict)
    tables: list[Table] = field(default_factory=list)
    pictures: list[Picture | Heatmap] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    arms: dict[str, str] = field(
        default_factory=dict
    )  # and how each differs from the common recipe
    why_not: str = ""  # it did not run

    def verdicts(self) -> list[Verdict]:
        """Return the verdict on each prediction."""
        return [p.judge(self.effects.get(p.effect)) for p in self.predictions]

    def about(self, reading: str) -> Verdict | None:
        """Return what the test says about a reading, None if that predicts nothing here."""
        mine = [
            v
            for p, v in zip(self.predictions, self.verdicts(), strict=True)
            if p.reading == reading
        ]
        return overall(mine) if mine else None


@dataclass
class Study:
    """All tests of a run of the lab."""

    kind: str  # quick, full, or the tests that were asked for
    seeds: list[int]
    results: list[Result]
    claims: list[Claim]
    environment: dict[str, Any]
    recipe: dict[str, Any]  # that all arms share but for their settings

    def save(self, folder: Path) -> None:
        """Write everything as JSON."""
        write_atomic(folder / RESULTS, json.dumps(asdict(self), indent=1))


def conduct(
    tests: Sequence[Experiment],
    folder: Path,
    console: Console,
    *,
    kind: str,
    quick: bool,
    seeds: Sequence[int] = SEEDS,
    engine: LocalEngine | None = None,
) -> Study:
    """Train, measure and judge; what was trained or measured before is not done again."""
    root = folder / "trained"
    arms = {test.number: list(test.quick if quick else test.arms) for test in tests}
    needed = {arm.name: arm for found in arms.values() for arm in found}
    jobs = [arm.job(seed) for arm in needed.values() for seed in seeds]
    faults = train_all(jobs, root, console, engine)
    disable_progress_bar()  # of loading each small model
    torch.set_num_threads(1)  # as the runs were trained; small products gain nothing from more
    results = []
    for number, kind_of_test in EXPERIMENTS.items():
        result = _blank(kind_of_test)
        if number in arms:
            with console.status(f"measuring: test {number}, {result.title}"):
                _measure(kind_of_test(), result, arms[number], seeds, faults, folder)
        else:
            result.why_not = "not asked for" if not quick else "not among the quick tests"
        results.append(result)
    base = [arm for arm in (STANDARD, V1, V2) if arm.name in needed]
    shelf = _shelf(base, seeds, root)
    return Study(kind, list(seeds), results, claims(shelf), environment(), COMMON.as_dict())


def _blank(kind: type[Experiment]) -> Result:
    return Result(kind.number, kind.title, kind.question, list(kind.predictions))


def _measure(
    test: Experiment,
    result: Result,
    arms: list[Arm],
    seeds: Sequence[int],
    faults: dict[str, str],
    folder: Path,
) -> None:
    """Fill in a result, from what was measured before if nothing has changed."""
    root = folder / "trained"
    jobs = [arm.job(seed) for arm in arms for seed in seeds]
    result.arms = {arm.name: arm.settings(COMMON) for arm in arms}
    for job in jobs:
        if not job.finished(root):
            result.why_not = f"{job.title}: {faults.get(job.key, 'was not trained')}"
            return
    keys = [test.version, *(job.key for job in jobs)]
    path = folder / "measured" / f"test-{test.number:02}.json"
    kept = _read(path)
    if kept is None or kept["keys"] != keys or "notes" not in kept:
        began = time.monotonic()
        found = test.measure(_shelf(arms, seeds, root))
        kept = {"keys": keys, "seconds": time.monotonic() - began, **_as_json(found)}
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps(kept, indent=1))
    fill(result, kept)
    if test.amended:
        result.notes.append(test.amended)


def _shelf(arms: Sequence[Arm], seeds: Sequence[int], root: Path) -> Shelf:
    return Shelf(
        {
            arm.name: [Trained(job, job.folder(root)) for job in map(arm.job, seeds)]
            for arm in arms
            if all(arm.job(seed).finished(root) for seed in seeds)
        }
    )


def _as_json(found: Measured) -> dict[str, Any]:
    return {
        "effects": {name: asdict(bootstrap(values)) for name, values in found.effects.items()},
        "tables": [asdict(table) for table in found.tables],
        "pictures": [asdict(picture) for picture in found.pictures],
        "notes": found.notes,
    }


def fill(result: Result, kept: dict[str, Any]) -> None:
    """Put effects, tables and pictures of JSON into a result."""
    result.effects = {name: Interval(**i) for name, i in kept["effects"].items()}
    result.tables = [Table(**t) for t in kept["tables"]]
    result.pictures = [_picture(p) for p in kept["pictures"]]
    result.notes = list(kept["notes"])


def _picture(fields: dict[str, Any]) -> Picture | Heatmap:
    if "values" in fields:
        return Heatmap(**fields)
    series = {
        name: [(x, Interval(**y) if isinstance(y, dict) else y) for x, y in points]
        for name, points in fields["series"].items()
    }
    return Picture(**{**fields, "series": series})


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None


def load(folder: Path) -> Study:
    """Return a study from its folder."""
    kept = _read(folder / RESULTS)
    if kept is None:
        raise ValueError(f"{folder}: has no {RESULTS} of a study that can be read")
    results = []
    for fields in kept["results"]:
        result = Result(
            fields["number"],
            fields["title"],
            fields["question"],
            [Prediction(**p) for p in fields["predictions"]],
            arms=fields["arms"],
            why_not=fields["why_not"],
        )
        fill(result, fields)
        results.append(result)
    found = [Claim(**claim) for claim in kept["claims"]]
    return Study(kept["kind"], kept["seeds"], results, found, kept["environment"], kept["recipe"])
