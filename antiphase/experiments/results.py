"""What a study found, and the JSON that it is stored as.

`results.json` of a study folder holds everything that the report shows, with the mean of each seed
beside every interval, so that verdicts can be recomputed by another rule.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from antiphase.analysis.statistics import Interval
from antiphase.experiments.experiment import Chart, Figure, Heatmap, Table
from antiphase.experiments.verdicts import (
    Effect,
    Prediction,
    Verdict,
    overall,
    require_measured,
)
from antiphase.training.checkpoints import write_atomic

RESULTS = "results.json"


@dataclass
class Result:
    """One test: what was predicted, what was measured, what follows.

    Attributes:
        number: the test's number; `title` and `question` as in the registry.
        predictions: of all readings.
        effects: measured intervals.
        tables: for the report.
        figures: for the report.
        notes: what a reader of the verdicts must know.
        arms: names, and how each arm's recipe differs from the common one.
        scope: which arms were measured, `quick arms` or `all arms`.
        seeds: of the training runs that it was measured on.
        keys: the test's version and the keys of these runs; a result is valid as long as the
            present code gives the same keys.
        why_not: why the test was not run; empty if it was.
    """

    number: int
    title: str
    question: str
    predictions: list[Prediction]
    effects: dict[Effect, Interval] = field(default_factory=dict)
    tables: list[Table] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    arms: dict[str, str] = field(default_factory=dict)
    scope: str = ""
    seeds: list[int] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    why_not: str = ""

    @property
    def provenance(self) -> str:
        """Return what the result was measured from; empty if the test was not run."""
        return f"{self.scope}, seeds {', '.join(map(str, self.seeds))}" if not self.why_not else ""

    def verdicts(self) -> list[Verdict]:
        """Return the verdict on each prediction.

        Raises:
            UnmeasuredEffectError: the test was run, but did not measure a predicted effect.
        """
        if self.why_not:
            return [Verdict.NOT_RUN for _ in self.predictions]
        require_measured(f"{self.number} ({self.title})", self.predictions, self.effects)
        return [p.judge(self.effects[p.effect]) for p in self.predictions]

    def about(self, reading: str) -> Verdict | None:
        """Return what the test says about a reading; None if that predicts nothing here."""
        mine = [
            verdict
            for prediction, verdict in zip(self.predictions, self.verdicts(), strict=True)
            if prediction.reading == reading
        ]
        return overall(mine) if mine else None


@dataclass(frozen=True)
class Claim:
    """A published number beside ours: of other models, on another task, at another size."""

    what: str
    published: str
    standard: str | Interval
    v1: str | Interval


@dataclass
class Study:
    """All tests of a study folder.

    Attributes:
        results: one per test of the registry, run or not.
        claims: published numbers beside ours.
        claims_seeds: the seeds that ours come from.
        environment: versions and machine of the last run.
        recipe: what all arms share except for their changes.
    """

    results: list[Result]
    claims: list[Claim]
    claims_seeds: list[int]
    environment: dict[str, Any]
    recipe: dict[str, Any]

    def save(self, folder: Path) -> None:
        """Write everything to the folder's results.json."""
        content = {
            "results": [result_to_json(result) for result in self.results],
            "claims": [asdict(claim) for claim in self.claims],
            "claims_seeds": self.claims_seeds,
            "environment": self.environment,
            "recipe": self.recipe,
        }
        write_atomic(folder / RESULTS, json.dumps(content, indent=1))


def load_study(folder: Path) -> Study:
    """Load the study of a folder.

    Raises:
        ValueError: the folder has no results.json, or it cannot be parsed.
    """
    kept = read_json(folder / RESULTS)
    if kept is None:
        raise ValueError(f"{folder}: has no {RESULTS} of a study that can be read")
    return Study(
        [result_from_json(fields) for fields in kept["results"]],
        [claim_from_json(fields) for fields in kept["claims"]],
        kept["claims_seeds"],
        kept["environment"],
        kept["recipe"],
    )


def result_to_json(result: Result) -> dict[str, Any]:
    """Return a result as plain JSON types; effects become a list, since keys must be strings."""
    fields = {name: getattr(result, name) for name in Result.__dataclass_fields__}
    fields["predictions"] = [asdict(prediction) for prediction in result.predictions]
    fields["effects"] = [
        {"effect": asdict(effect), "interval": asdict(interval)}
        for effect, interval in result.effects.items()
    ]
    fields["tables"] = [asdict(table) for table in result.tables]
    fields["figures"] = [asdict(figure) for figure in result.figures]
    return fields


def result_from_json(fields: dict[str, Any]) -> Result:
    """Return the result that `result_to_json` stored."""
    predictions = [
        Prediction(**{**p, "effect": Effect(**p["effect"])}) for p in fields["predictions"]
    ]
    effects = {Effect(**e["effect"]): _interval(e["interval"]) for e in fields["effects"]}
    tables = [
        Table(t["title"], t["columns"], [[_cell(cell) for cell in row] for row in t["rows"]])
        for t in fields["tables"]
    ]
    figures = [_figure(figure) for figure in fields["figures"]]
    return Result(
        **{
            **fields,
            "predictions": predictions,
            "effects": effects,
            "tables": tables,
            "figures": figures,
        }
    )


def claim_from_json(fields: dict[str, Any]) -> Claim:
    """Return a claim stored as JSON."""
    return Claim(
        fields["what"], fields["published"], _cell(fields["standard"]), _cell(fields["v1"])
    )


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the content of a JSON file; None if it does not exist or is damaged."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None


def _interval(fields: dict[str, Any]) -> Interval:
    by_seed = fields["by_seed"]
    return Interval(**{**fields, "by_seed": None if by_seed is None else tuple(by_seed)})


def _cell(cell: Any) -> Any:
    return _interval(cell) if isinstance(cell, dict) else cell


def _figure(fields: dict[str, Any]) -> Figure:
    if "values" in fields:
        return Heatmap(**fields)
    series = {
        name: [(x, _interval(y)) for x, y in points] for name, points in fields["series"].items()
    }
    return Chart(**{**fields, "series": series})
