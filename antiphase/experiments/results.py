"""What a study found, and the JSON that it is stored as.

`results.json` of a study folder holds everything that the report shows, with the mean of each seed
beside every interval, so that verdicts can be recomputed by another rule.
"""

import json
import math
from collections.abc import Sequence, Sized
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from antiphase.analysis.statistics import Interval, holm
from antiphase.experiments.attention_example import AttentionExample
from antiphase.experiments.experiment import Chart, Figure, Heatmap, Table
from antiphase.experiments.lock import require_as_locked
from antiphase.experiments.stored_types import require_type
from antiphase.experiments.verdicts import (
    Effect,
    Judgement,
    Prediction,
    Verdict,
    require_measured,
)
from antiphase.training.checkpoints import write_atomic

RESULTS = "results.json"
PUBLISHED = Path(__file__).parent / "published_study"
"""Folder of the study that ships with the package."""
NOT_SELECTED = "not selected"
"""Why a test was not run that nobody asked for."""
FORMAT = 2  # of results.json; 1 had neither gates nor kinds of prediction


@dataclass
class Result:
    """One test: what was predicted, what was measured, what follows.

    Attributes:
        number: the test's number; `title` and `question` as in the registry.
        predictions: of all readings.
        effects: measured intervals, of predictions, of their gates, and others.
        tables: for the report.
        figures: for the report.
        notes: what a reader of the verdicts must know.
        arms: names, and how each arm's recipe differs from the common one.
        study_id: name of the study that it was measured in.
        seeds: of the training runs that it was measured on.
        keys: the test's version and the keys of these runs; a result is valid as long as the
            present code gives the same keys.
        why_not: why the test was not run; empty if it was.
        void: verdicts that were withdrawn after the study, and why: the primary one of a reading
            by the reading, any other by its effect. They are `invalid`, whatever the interval.
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
    study_id: str = ""
    seeds: list[int] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    why_not: str = ""
    void: dict[str, str] = field(default_factory=dict)

    @property
    def provenance(self) -> str:
        """Return what the result was measured from; empty if the test was not run."""
        seeds = ", ".join(map(str, self.seeds))
        return f"study {self.study_id!r}, seeds {seeds}" if not self.why_not else ""

    def judgements(self) -> list[Judgement]:
        """Return the verdict on each prediction, with its gates and its p.

        Raises:
            UnmeasuredEffectError: the test was run, but did not measure the effect of a prediction
                or of a gate.
        """
        if self.why_not:
            return [prediction.judge(None) for prediction in self.predictions]
        require_measured(f"{self.number} ({self.title})", self.predictions, self.effects)
        found = [prediction.judge(self.effects) for prediction in self.predictions]
        return [
            Judgement(Verdict.INVALID, judgement.gates, void=self.void[key])
            if (key := p.reading if p.primary else str(p.effect)) in self.void
            else judgement
            for p, judgement in zip(self.predictions, found, strict=True)
        ]

    def primary(self) -> dict[str, Judgement]:
        """Return the judgement of the primary prediction of each reading."""
        pairs = zip(self.predictions, self.judgements(), strict=True)
        return {p.reading: judgement for p, judgement in pairs if p.primary}

    def about(self, reading: str) -> Verdict | None:
        """Return the verdict on a reading's primary prediction; None if it predicts nothing."""
        judgement = self.primary().get(reading)
        return judgement.verdict if judgement else None


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
        study_id: name of the study, as in its lock.
        seeds: of the study.
        lock: content of the lock that its predictions were written under; None without one.
        training: tables of how the arms were tuned and trained.
        attention: where attention goes on one sequence; None if no model was trained.
    """

    results: list[Result]
    claims: list[Claim]
    claims_seeds: list[int]
    environment: dict[str, Any]
    recipe: dict[str, Any]
    study_id: str = ""
    seeds: list[int] = field(default_factory=list)
    lock: dict[str, Any] | None = None
    training: list[Table] = field(default_factory=list)
    attention: AttentionExample | None = None

    def locked(self, result: Result) -> bool:
        """Return whether a test was run with the lock's seeds, under its predictions."""
        lock = self.lock
        return lock is not None and (result.study_id, sorted(result.seeds)) == (
            lock["study_id"],
            sorted(lock["seeds"]),
        )

    def adjusted_p(self) -> dict[tuple[int, str], float]:
        """Return the p of every primary prediction with a verdict, adjusted by Holm's method.

        The family is all primary predictions of the lock, whether they were run or not; without a
        lock, those that were run. One without a p, such as an invalid one, counts with p = 1.

        Returns:
            By number of the test and reading. Tests that were not run, are invalid or have too few
            seeds have no p; in a locked study, nor have those of other seeds.
        """
        p = {
            (result.number, reading): judgement.p
            for result in self.results
            if self.lock is None or self.locked(result)
            for reading, judgement in result.primary().items()
            if judgement.p is not None or judgement.verdict is Verdict.INVALID
        }
        family = {**dict.fromkeys(_locked_primary(self.lock)), **p}
        adjusted = holm([1.0 if value is None else value for value in family.values()])
        return {
            key: value
            for key, value in zip(family, adjusted, strict=True)
            if p.get(key) is not None
        }

    def save(self, folder: Path) -> None:
        """Write everything to the folder's results.json."""
        content = {
            "format": FORMAT,
            "study_id": self.study_id,
            "seeds": self.seeds,
            "lock": self.lock,
            "training": [asdict(table) for table in self.training],
            "attention": self.attention.as_dict() if self.attention else None,
            "results": [result_to_json(result) for result in self.results],
            "claims": [asdict(claim) for claim in self.claims],
            "claims_seeds": self.claims_seeds,
            "environment": self.environment,
            "recipe": self.recipe,
        }
        write_atomic(folder / RESULTS, json.dumps(without_nan(content), indent=1))


def load_study(folder: Path) -> Study:
    """Load the study of a folder.

    Raises:
        ValueError: the folder has no results.json, it cannot be parsed, it was written by a
            version of the lab with other rules, or it holds what the lab does not write.
    """
    kept = read_json(folder / RESULTS)
    if kept is None:
        raise ValueError(f"{folder}: has no {RESULTS} of a study that can be read")
    if kept.get("format") != FORMAT:
        raise ValueError(
            f"{folder / RESULTS}: has format {kept.get('format', 1)}, this version reads {FORMAT}; "
            "its predictions follow other rules and cannot be judged anew. Run the study again: "
            "antiphase lab --full --out FOLDER"
        )
    try:
        study = _study(kept)
        _require_valid(study)
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise ValueError(
            f"{folder / RESULTS}: is damaged, or was not written by the lab: {reason}"
        ) from error
    return study


def _locked_primary(lock: dict[str, Any] | None) -> list[tuple[int, str]]:
    """Return test and reading of every primary prediction of a lock."""
    by_test = lock["predictions"] if lock is not None else {}
    return [
        (int(number), prediction["reading"])
        for number, predictions in by_test.items()
        for prediction in predictions
        if prediction["primary"]
    ]


def _study(kept: dict[str, Any]) -> Study:
    attention = kept["attention"]
    return Study(
        [result_from_json(fields) for fields in kept["results"]],
        [claim_from_json(fields) for fields in kept["claims"]],
        kept["claims_seeds"],
        kept["environment"],
        kept["recipe"],
        kept["study_id"],
        kept["seeds"],
        kept["lock"],
        [_table(table) for table in kept["training"]],
        AttentionExample.from_dict(attention) if attention else None,
    )


_LOCK = {"study_id": str, "seeds": list[int], "digest": str, "commit": str, "time": str}


def _require_valid(study: Study) -> None:
    """Raise ValueError unless the report can show every field: a results.json may be anyone's."""
    require_type("study", study, Study)
    if study.lock is not None:
        for name, kind in {**_LOCK, "dirty": bool}.items():
            require_type(f"lock.{name}", study.lock.get(name), kind)
        mine = [r for r in study.results if study.locked(r) and not r.why_not]
        require_as_locked(study.lock, {r.number: r.predictions for r in mine})
    for result in study.results:
        for table in result.tables:
            _require_shape(f"table {table.title!r}", table.rows, None, len(table.columns))
        for figure in result.figures:
            if isinstance(figure, Heatmap):
                shape = len(figure.rows), len(figure.columns)
                _require_shape(f"figure {figure.title!r}", figure.values, *shape)
    for table in study.training:
        _require_shape(f"table {table.title!r}", table.rows, None, len(table.columns))
    if study.attention is not None:
        _require_attention(study.attention)


def _require_attention(example: AttentionExample) -> None:
    T = len(example.tokens)
    for name, positions in {"answer": example.answer, "query": example.query}.items():
        if not positions or not all(0 <= i < T for i in positions):
            raise ValueError(f"attention.{name}: got {positions}, expected positions below {T}")
    if not example.rows:
        raise ValueError("attention.rows: is empty, expected at least one arm")
    for row in example.rows:
        weights = [row.signal, row.difference, row.noise or row.signal]
        _require_shape(f"attention of {row.arm!r}", weights, 3, T)
    for m in example.maps:
        if not m.arm.isprintable() or {"/", "\\"} & {*m.arm}:  # it becomes part of a file's name
            raise ValueError(
                f"attention.maps: got the arm {m.arm!r}, expected a name without / or \\"
            )
        if len(m.thousandths) != T or any(len(row) > T for row in m.thousandths):
            raise ValueError(f"attention.maps: a map of {m.arm!r} does not have {T} tokens")


def _require_shape(what: str, rows: Sequence[Sized], height: int | None, width: int) -> None:
    """Raise ValueError unless there are `height` rows (None: any number) of the same width."""
    if (height is not None and len(rows) != height) or any(len(row) != width for row in rows):
        size = f"{height} rows of {width}" if height is not None else f"rows of {width}"
        found = f"{len(rows)} rows of {', '.join(map(str, sorted({*map(len, rows)})))}"
        raise ValueError(f"{what}: got {found}, expected {size}")


def result_to_json(result: Result) -> dict[str, Any]:
    """Return a result as plain JSON types.

    Effects become a list, since keys must be strings, and NaN becomes None.
    """
    fields = {name: getattr(result, name) for name in Result.__dataclass_fields__}
    fields["predictions"] = [prediction.as_dict() for prediction in result.predictions]
    fields["effects"] = [
        {"effect": asdict(effect), "interval": asdict(interval)}
        for effect, interval in result.effects.items()
    ]
    fields["tables"] = [asdict(table) for table in result.tables]
    fields["figures"] = [asdict(figure) for figure in result.figures]
    return dict(without_nan(fields))


def result_from_json(fields: dict[str, Any]) -> Result:
    """Return the result that `result_to_json` stored."""
    predictions = [Prediction.from_dict(prediction) for prediction in fields["predictions"]]
    effects = {Effect(**e["effect"]): _interval(e["interval"]) for e in fields["effects"]}
    tables = [_table(table) for table in fields["tables"]]
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


def without_nan(content: Any) -> Any:
    """Return the content with None for every NaN, which JSON does not have."""
    if isinstance(content, dict):
        return {key: without_nan(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [without_nan(value) for value in content]
    return None if isinstance(content, float) and math.isnan(content) else content


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the content of a JSON file; None if it does not exist, is damaged or no object."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _interval(fields: dict[str, Any]) -> Interval:
    by_seed = fields["by_seed"]
    return Interval(
        _number(fields["mean"]),
        _number(fields["low"]),
        _number(fields["high"]),
        fields["seeds"],
        None if by_seed is None else tuple(map(_number, by_seed)),
    )


def _cell(cell: Any) -> Any:
    return _interval(cell) if isinstance(cell, dict) else cell


def _table(fields: dict[str, Any]) -> Table:
    rows = [[_cell(cell) for cell in row] for row in fields["rows"]]
    return Table(fields["title"], fields["columns"], rows, fields.get("note", ""))


def _figure(fields: dict[str, Any]) -> Figure:
    if "values" in fields:
        values = [[_number(value) for value in row] for row in fields["values"]]
        return Heatmap(**{**fields, "values": values})
    series = {
        name: [(_place(x), _interval(y)) for x, y in points]
        for name, points in fields["series"].items()
    }
    return Chart(**{**fields, "series": series})


def _place(x: Any) -> Any:
    require_type("place on the x axis", x, str | float)
    return x
