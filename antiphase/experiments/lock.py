"""The lock of a study: predictions, seeds, commit and time, written before any of its runs.

`lock.json` in the study folder shows that the predictions are older than the data. A study checks
it before it trains or judges.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from antiphase.experiments.verdicts import Effect, Prediction
from antiphase.training.checkpoints import read_json, write_atomic
from antiphase.training.provenance import source_version

LOCK = "lock.json"

Predictions = Mapping[int, Sequence[Prediction]]
"""The predictions of a study, by the number of their test."""

AMENDED = (
    "A prediction that is changed after the lock is amended and needs seeds that nobody has looked "
    "at: lock a new study, with another id and other seeds, in another folder"
)


class LockError(ValueError):
    """A study has no lock, or does not agree with it."""


def write_lock(
    study_id: str,
    seeds: Sequence[int],
    predictions: Predictions,
    design: Mapping[str, Any],
    folder: Path,
    existing_runs: Iterable[tuple[str, Path]] = (),
) -> dict[str, Any]:
    """Write the lock of a study; the same lock may be written again and keeps its time.

    Args:
        study_id: name of the study.
        seeds: of its runs; no run with one of them may exist.
        predictions: of all tests of the study.
        design: what is trained, as plain JSON types: common recipe, arms, tuning.
        folder: the study folder.
        existing_runs: key and folder of every run, begun or finished, with one of the seeds.

    Returns:
        The lock: study_id, seeds, digest, predictions, design, commit, dirty and time (UTC).

    Raises:
        LockError: a run of these seeds exists, or another lock does.
    """
    lock = read_lock(folder)
    if lock is not None:
        require_same(lock, study_id, seeds, predictions, design, folder)
        return lock
    runs = list(existing_runs)
    if runs:
        key, path = runs[0]
        raise LockError(
            f"lock of {study_id!r}: got seeds {_listed(seeds)}, with which {len(runs)} runs exist "
            f"already, e.g. {key} ({path}); a lock must be older than its runs. Use other seeds"
        )
    lock = new_lock(study_id, seeds, predictions, design)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / LOCK, json.dumps(lock, indent=1))
    return lock


def new_lock(
    study_id: str, seeds: Sequence[int], predictions: Predictions, design: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the content of a lock of this moment; `write_lock` says what the arguments are."""
    commit, dirty = source_version()
    plain, plain_design = _plain(predictions), json.loads(_canonical(design))
    return {
        "study_id": study_id,
        "seeds": list(seeds),
        "digest": _digest([plain, plain_design]),
        "predictions": plain,
        "design": plain_design,
        "commit": commit,
        "dirty": dirty,
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def read_lock(folder: Path) -> dict[str, Any] | None:
    """Return the lock of a study folder; None if it has none.

    Raises:
        LockError: the lock cannot be read, or its predictions are not those of its digest.
    """
    if not (folder / LOCK).exists():
        return None
    try:
        lock = read_json(folder / LOCK)
        require_as_locked(lock, {})
    except ValueError as error:
        raise LockError(
            f"{folder / LOCK}: was damaged or edited; restore it from a backup"
        ) from error
    return lock


def require_as_locked(lock: Mapping[str, Any], predictions: Predictions) -> None:
    """Check that a lock has its digest, and that predictions are those that it has.

    Args:
        lock: as `write_lock` returned it.
        predictions: of some of its tests.

    Raises:
        LockError: the lock was edited, or a prediction differs from it.
    """
    if lock.get("digest") != _digest([lock.get("predictions"), lock.get("design")]):
        raise LockError("lock: its digest is not that of its predictions and design")
    plain = _plain(predictions)
    if changed := [test for test in plain if plain[test] != lock["predictions"].get(test)]:
        raise LockError(f"lock: has other predictions of test {', '.join(changed)}")


def check_lock(
    study_id: str,
    seeds: Sequence[int],
    predictions: Predictions,
    design: Mapping[str, Any],
    folder: Path,
    started: Iterable[tuple[str, datetime]] = (),
    command: str | None = None,
) -> dict[str, Any]:
    """Check that a study agrees with its lock, and that the lock is older than its runs.

    Args:
        study_id: name of the study.
        seeds: of its runs.
        predictions: of all tests of the study, as the code has them now.
        design: what is trained, as the code has it now.
        folder: the study folder.
        started: key and start (with a time zone) of every run of the study.
        command: that writes the lock, for the error; default: the lab's.

    Returns:
        The lock.

    Raises:
        LockError: there is no lock, a prediction has changed since, the id or the seeds differ, or
            a run is older than the lock.
    """
    lock = read_lock(folder)
    if lock is None:
        raise LockError(
            f"{folder}: has no {LOCK}; lock the predictions before the first run: "
            + (command or f"antiphase lab lock --study {study_id} --out {folder}")
        )
    require_same(lock, study_id, seeds, predictions, design, folder)
    locked = datetime.fromisoformat(lock["time"])
    for key, start in started:
        if start < locked:
            raise LockError(
                f"{folder / LOCK}: is of {locked.isoformat()}, but the run {key} began before it, "
                f"at {start.isoformat()}; lock a study with seeds that have no runs"
            )
    return lock


def runs_of(seeds: Sequence[int], root: Path) -> list[Path]:
    """Return the folders of all runs with one of the seeds, begun or finished.

    Args:
        seeds: of a study.
        root: folder of all runs; the seed is the last but one part of a run's key.
    """
    found = sorted(root.glob("*/recipe.yaml"))
    wanted = {str(seed) for seed in seeds}
    return [p.parent for p in found if p.parent.name.rsplit("-", 2)[1] in wanted]


def starts_of(seeds: Sequence[int], root: Path) -> list[tuple[str, datetime]]:
    """Return when each run with one of the seeds began: its recipe is written first, and once."""
    return [
        (
            folder.name,
            datetime.fromtimestamp((folder / "recipe.yaml").stat().st_mtime, timezone.utc),
        )
        for folder in runs_of(seeds, root)
    ]


def require_same(
    lock: dict[str, Any],
    study_id: str,
    seeds: Sequence[int],
    predictions: Predictions,
    design: Mapping[str, Any],
    folder: Path,
) -> None:
    """Raise LockError unless a lock is of this study, these seeds, predictions and this design."""
    path = folder / LOCK
    if lock["study_id"] != study_id:
        raise LockError(f"{path}: is of the study {lock['study_id']!r}, not of {study_id!r}")
    if sorted(lock["seeds"]) != sorted(seeds):
        raise LockError(
            f"{path}: has the seeds {_listed(lock['seeds'])}, got {_listed(seeds)}; use the locked "
            "seeds, or lock another study for the others"
        )
    plain = _plain(predictions)
    now = json.loads(_canonical(design))
    if changed := [
        name for name in {**lock["design"], **now} if lock["design"].get(name) != now.get(name)
    ]:
        raise LockError(
            f"{path}: the design has changed since the lock, in: {', '.join(changed)}; restore it, "
            "or lock a new study, with another id and other seeds, in another folder"
        )
    if lock["predictions"] != plain:
        changes = "\n".join(f"  {change}" for change in _changes(lock["predictions"], plain))
        raise LockError(
            f"{path}: the predictions have changed since the lock:\n{changes}\n{AMENDED}"
        )


def _plain(predictions: Predictions) -> dict[str, list[dict[str, Any]]]:
    """Return the predictions as plain JSON types, whatever their order in the code."""
    return {
        str(test): sorted((p.as_dict() for p in predictions[test]), key=_canonical)
        for test in sorted(predictions)
    }


def _canonical(plain: Any) -> str:
    return json.dumps(plain, sort_keys=True, separators=(",", ":"))


def _digest(plain: Any) -> str:
    return hashlib.sha256(_canonical(plain).encode()).hexdigest()


def _changes(
    before: dict[str, list[dict[str, Any]]], now: dict[str, list[dict[str, Any]]]
) -> list[str]:
    """Say which predictions were changed, removed or added."""
    found = []
    for test in sorted({*before, *now}, key=int):
        was, is_now = before.get(test, []), now.get(test, [])
        old = _by_name([prediction for prediction in was if prediction not in is_now])
        new = _by_name([prediction for prediction in is_now if prediction not in was])
        for name in dict.fromkeys((*old, *new)):
            if name not in new:
                found.append(f"test {test}, {name}: removed")
            elif name not in old:
                found.append(f"test {test}, {name}: added")
            else:
                fields = [field for field in new[name] if new[name][field] != old[name].get(field)]
                found += [
                    f"test {test}, {name}: {field} was {old[name].get(field)!r}, is "
                    f"{new[name][field]!r}"
                    for field in fields
                ]
    return found


def _by_name(predictions: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    named: dict[str, dict[str, Any]] = {}
    for prediction in predictions:
        name = f"{prediction['reading']}, {Effect(**prediction['effect'])}"
        while name in named:  # a reading may say two things about one effect
            name += " (another)"
        named[name] = prediction
    return named


def _listed(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds))
