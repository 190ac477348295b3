"""Run a study: train what the tests need, measure, and keep every number.

A study folder accumulates. `trained/` holds the runs, `measured/` one file per test. A test is
measured again only if its version, arms, seeds or recipes have changed; tests that are not part of
a call keep the result of an earlier call, as long as the present code still gives the same runs.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from transformers.utils.logging import disable_progress_bar

from antiphase.analysis.statistics import seed_interval
from antiphase.experiments.arms import COMMON, SEEDS, STANDARD, V1, Arm
from antiphase.experiments.engine import LocalEngine, train_all
from antiphase.experiments.experiment import Experiment
from antiphase.experiments.published_claims import published_claims
from antiphase.experiments.registry import EXPERIMENTS, RegisteredTest
from antiphase.experiments.results import (
    Claim,
    Result,
    Study,
    claim_from_json,
    read_json,
    result_from_json,
    result_to_json,
)
from antiphase.experiments.trained_models import TrainedModels
from antiphase.experiments.verdicts import require_measured
from antiphase.training.checkpoints import write_atomic
from antiphase.training.provenance import environment

QUICK, ALL = "quick arms", "all arms"


def run_study(
    tests: Sequence[RegisteredTest],
    folder: Path,
    console: Console,
    *,
    quick: bool,
    seeds: Sequence[int] = SEEDS,
    engine: LocalEngine | None = None,
) -> Study:
    """Train, measure and judge; what was trained or measured before is not repeated.

    Args:
        tests: the tests to run.
        folder: the study folder; other tests' results in it are kept.
        console: where progress is shown.
        quick: train the quick arms of each test only.
        seeds: of the training runs.
        engine: performs the runs; default: all cores of this machine.

    Returns:
        All tests of the registry, run now, run earlier, or not run.

    Raises:
        UnmeasuredEffectError: a test does not measure an effect that it predicts.
    """
    root = folder / "trained"
    chosen = {test.number: test.load().arms_for(quick) for test in tests}
    needed = [arm for arms in chosen.values() for arm in arms]
    runs = {run.key: run for run in (arm.training_run(s) for arm in needed for s in seeds)}
    errors = train_all(list(runs.values()), root, console, engine)
    disable_progress_bar()  # of loading each small model
    torch.set_num_threads(1)  # as the runs were trained; small products gain nothing from more
    results = []
    for number, entry in EXPERIMENTS.items():
        if number in chosen:
            with console.status(f"measuring: test {number}, {entry.title}"):
                scope = QUICK if quick else ALL
                result = _run(entry, chosen[number], list(seeds), scope, errors, folder)
        else:
            result = _earlier(entry, folder)
        results.append(result)
    if kept := [r.number for r in results if r.number not in chosen and not r.why_not]:
        console.print(f"kept from earlier: tests {', '.join(map(str, kept))}", highlight=False)
    compared = [arm for arm in (STANDARD, V1) if arm in needed]
    claims, claims_seeds = _claims(compared, list(seeds), folder)
    return Study(results, claims, claims_seeds, environment(), COMMON.as_dict())


def _run(
    entry: RegisteredTest,
    arms: list[Arm],
    seeds: list[int],
    scope: str,
    errors: dict[str, str],
    folder: Path,
) -> Result:
    """Measure a test on its trained arms, unless the same has been measured before."""
    test = entry.load()
    result = _blank(entry, test)
    result.arms = {arm.name: arm.changes(COMMON) for arm in arms}
    result.scope, result.seeds, result.keys = scope, seeds, _keys(test, arms, seeds)
    root = folder / "trained"
    for run in (arm.training_run(seed) for arm in arms for seed in seeds):
        if not run.finished(root):
            result.why_not = f"{run.title}: {errors.get(run.key, 'was not trained')}"
            return result
    earlier = _stored(entry, folder)
    if earlier is not None and earlier.keys == result.keys and _complete(earlier, test):
        _adopt(result, earlier, test)
        return result
    measured = test.measure(TrainedModels.finished(arms, seeds, root))
    require_measured(f"{entry.number} ({entry.title})", test.predictions, measured.effects)
    result.effects = {effect: seed_interval(values) for effect, values in measured.effects.items()}
    result.tables, result.figures = measured.tables, measured.figures
    result.notes = [*measured.notes, *([test.amended] if test.amended else [])]
    path = _measured_file(entry, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps(result_to_json(result), indent=1))
    return result


def _earlier(entry: RegisteredTest, folder: Path) -> Result:
    """Return the result of an earlier call, if the present code gives the same runs."""
    test = entry.load()
    result = _blank(entry, test)
    earlier = _stored(entry, folder)
    if earlier is None:
        result.why_not = "not selected"
        return result
    known = {arm.name: arm for arm in (*test.arms, *(test.quick_arms or ()))}
    arms = [known[name] for name in earlier.arms if name in known]
    same = len(arms) == len(earlier.arms) and earlier.keys == _keys(test, arms, earlier.seeds)
    if not same:
        result.why_not = "measured earlier with other recipes or versions, so left out"
        return result
    if not _complete(earlier, test):
        result.why_not = "measured earlier, without an effect that is predicted now; run it again"
        return result
    result.arms, result.scope = earlier.arms, earlier.scope
    result.seeds, result.keys = earlier.seeds, earlier.keys
    _adopt(result, earlier, test)
    return result


def _blank(entry: RegisteredTest, test: Experiment) -> Result:
    return Result(entry.number, entry.title, entry.question, list(test.predictions))


def _adopt(result: Result, earlier: Result, test: Experiment) -> None:
    """Take over what was measured; predictions and titles are those of the present code."""
    result.effects, result.tables = earlier.effects, earlier.tables
    result.figures, result.notes = earlier.figures, list(earlier.notes)
    if test.amended and test.amended not in result.notes:
        result.notes.append(test.amended)
    if result.predictions != earlier.predictions:
        result.notes.append("The predictions of this test were changed after it was measured.")


def _complete(earlier: Result, test: Experiment) -> bool:
    needed = {effect for prediction in test.predictions for effect in prediction.required}
    return needed <= set(earlier.effects)


def _keys(test: Experiment, arms: Sequence[Arm], seeds: Sequence[int]) -> list[str]:
    return [f"version {test.version}", *(arm.training_run(s).key for arm in arms for s in seeds)]


def _measured_file(entry: RegisteredTest, folder: Path) -> Path:
    return folder / "measured" / f"test-{entry.number:02}.json"


def _stored(entry: RegisteredTest, folder: Path) -> Result | None:
    """Return the stored result of a test; None if there is none that can be read."""
    kept: Any = read_json(_measured_file(entry, folder))
    try:
        return None if kept is None else result_from_json(kept)
    except (KeyError, TypeError, ValueError):
        return None  # of another version of the package: measured again


def _claims(arms: list[Arm], seeds: list[int], folder: Path) -> tuple[list[Claim], list[int]]:
    """Return the published numbers beside those of STANDARD and V1, and the seeds of ours."""
    path = folder / "measured" / "claims.json"
    kept = read_json(path)
    models = TrainedModels.finished(arms, seeds, folder / "trained")
    if STANDARD not in models or V1 not in models:  # not part of this call, or not trained
        if kept is None or kept["keys"] != _claim_keys(kept["seeds"]):
            return [], []
        seeds = kept["seeds"]
    elif kept is None or kept["keys"] != _claim_keys(seeds):
        found = [asdict(claim) for claim in published_claims(models)]
        kept = {"keys": _claim_keys(seeds), "seeds": seeds, "claims": found}
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps(kept, indent=1))
    return [claim_from_json(fields) for fields in kept["claims"]], seeds


def _claim_keys(seeds: Sequence[int]) -> list[str]:
    return [arm.training_run(seed).key for arm in (STANDARD, V1) for seed in seeds]
