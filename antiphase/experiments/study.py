"""Run a study: tune the arms, train what the tests need, measure, and keep every number.

A study folder accumulates. `trained/` holds the runs of tuning and study, `measured/` one file per
test. A test is measured again only if its version, arms, seeds or recipes have changed; tests that
are not part of a call keep the result of an earlier call, as long as the present code still gives
the same runs.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from transformers.utils.logging import disable_progress_bar

from antiphase.analysis.compare_runs import flat_fields
from antiphase.analysis.statistics import seed_interval
from antiphase.experiments.arms import STANDARD, V1, Arm, Settings, TrainingRun, arm_recipe
from antiphase.experiments.attention_example import (
    ROW_ARMS,
    AttentionExample,
    attention_example,
)
from antiphase.experiments.engine import Engine
from antiphase.experiments.experiment import Experiment, Table
from antiphase.experiments.local_pool import LocalEngine
from antiphase.experiments.lock import check_lock, require_same, runs_of, starts_of, write_lock
from antiphase.experiments.model_measurements import EXAMPLES, SEQUENCES
from antiphase.experiments.plans import Plan
from antiphase.experiments.published_claims import published_claims
from antiphase.experiments.registry import EXPERIMENTS, RegisteredTest
from antiphase.experiments.results import (
    NOT_SELECTED,
    PUBLISHED,
    RESULTS,
    Claim,
    Result,
    Study,
    claim_from_json,
    read_json,
    result_from_json,
    result_to_json,
    without_nan,
)
from antiphase.experiments.step_time import step_seconds
from antiphase.experiments.study_records import (
    MEASURES,
    Runs,
    StudyRecords,
    distinct_arms,
    measured_as,
    measuring,
    version_of,
)
from antiphase.experiments.train_all import duration, longest_first, train_all
from antiphase.experiments.trained_models import TrainedModels
from antiphase.experiments.training_tables import cost_table, training_tables
from antiphase.experiments.tuning import chosen_settings, tune, tuning_table
from antiphase.experiments.verdicts import Prediction, require_measured
from antiphase.models import AntiphaseForCausalLM
from antiphase.training import Recipe
from antiphase.training.checkpoints import write_atomic
from antiphase.training.components import dataset, model_config
from antiphase.training.provenance import environment


def run_study(
    plan: Plan,
    tests: Sequence[RegisteredTest],
    folder: Path,
    console: Console,
    *,
    engine: Engine | None = None,
    records: Path | None = None,
) -> Study:
    """Tune, train, measure and judge; what was trained or measured before is not repeated.

    Args:
        plan: of the study.
        tests: the tests to run.
        folder: the study folder; other tests' results in it are kept.
        console: where progress is shown.
        engine: performs the runs; default: all cores of this machine.
        records: file of finished runs without their weights (`Records`). What it has is not
            trained again. A run is added when it is measured: on text when it ends, else when all
            arms of its seed have ended.

    Returns:
        All tests of the registry, run now, run earlier, or not run.

    Raises:
        LockError: the plan needs a lock and does not have a valid one.
        UnmeasuredEffectError: a test does not measure an effect that it predicts.
    """
    root = folder / "trained"
    chosen = {test.number: test.load() for test in tests}
    arms = distinct_arms(chosen.values())
    lock = None
    if plan.locked:
        lock = check_lock(
            plan.id,
            plan.seeds,
            predictions_of(plan),
            design_of(plan),
            folder,
            starts_of(plan.seeds, root),
        )
    disable_progress_bar()  # of loading each small model
    torch.set_num_threads(1)  # as the runs were trained; small products gain nothing from more
    engine = engine or LocalEngine()
    kept = None if records is None else StudyRecords(records, folder, console)
    if kept is not None and plan.grid is not None:
        kept.restore_tuning(plan.grid.all_seeds)
    _announce(plan, arms, engine.workers, console)
    settings, tuning = _settings(plan, arms, root, console, engine, kept)
    runs: Runs = {
        arm.name: [
            TrainingRun(arm_recipe(plan.recipe, arm, settings[arm.name]).changed(seed=seed))
            for seed in plan.seeds
        ]
        for arm in arms
    }
    if kept is not None:
        kept.restore_runs(chosen, runs)
    # seed by seed: as long as a seed is not complete, none of its runs is recorded
    by_seed = [run for group in zip(*runs.values(), strict=True) for run in longest_first(group)]
    errors = train_all(by_seed, root, console, engine, kept.record_run if kept else None)
    with measuring(folder, console):
        results = _results(plan, chosen, runs, errors, folder, console)
        models = TrainedModels.finished(runs, root, MEASURES)
        with console.status("measuring: training"):
            tables = training_tables(models, arms)
            if cost := _cost(plan, chosen, runs, root):
                tables.append(cost)
        with console.status("measuring: attention on one sequence"):
            claims, claims_seeds = _claims(models, plan, runs, folder)
            attention = _attention(plan, models, runs, folder)
    return Study(
        results,
        claims,
        claims_seeds,
        environment(),
        plan.recipe.as_dict(),
        plan.id,
        list(plan.seeds),
        lock,
        [*([tuning] if tuning else []), *tables],
        attention,
    )


def _cost(plan: Plan, chosen: Mapping[int, Experiment], runs: Runs, root: Path) -> Table | None:
    """Return what the tests of this call have cost, in core-hours."""
    tests = {
        f"{number} {EXPERIMENTS[number].title}": [
            run.folder(root) for arm in test.arms for run in runs[arm.name]
        ]
        for number, test in chosen.items()
    }
    return cost_table(tests, runs_of(plan.grid.all_seeds, root) if plan.grid else [])


def _results(
    plan: Plan,
    chosen: Mapping[int, Experiment],
    runs: Runs,
    errors: dict[str, str],
    folder: Path,
    console: Console,
) -> list[Result]:
    """Return the results of all tests: of this call, of earlier ones, or why there is none."""
    results = []
    for number, entry in EXPERIMENTS.items():
        if number in chosen:
            with console.status(f"measuring: test {number}, {entry.title}"):
                result = _run(entry, chosen[number], plan, runs, errors, folder)
        else:
            result = _earlier(entry, folder)
        results.append(result)
    if kept := [r.number for r in results if r.number not in chosen and not r.why_not]:
        console.print(f"kept from earlier: tests {', '.join(map(str, kept))}", highlight=False)
    return results


def lock_study(plan: Plan, folder: Path) -> dict[str, Any]:
    """Lock the predictions and the design of a study, before any of its runs.

    Raises:
        LockError: a run with one of its seeds exists, or another lock does; or the study that
            ships with the package has these seeds and other predictions.
    """
    root = folder / "trained"
    existing = [(path.name, path) for path in runs_of(plan.seeds, root)]
    predictions, design = predictions_of(plan), design_of(plan)
    published = read_json(PUBLISHED / RESULTS)
    if published is not None and {*plan.seeds} & {*published["seeds"]}:
        require_same(published["lock"], plan.id, plan.seeds, predictions, design, PUBLISHED)
    return write_lock(plan.id, plan.seeds, predictions, design, folder, existing)


def predictions_of(plan: Plan) -> dict[int, Sequence[Prediction]]:
    """Return the predictions of a plan's tests, by number."""
    return {number: EXPERIMENTS[number].load().predictions for number in plan.tests}


def design_of(plan: Plan) -> dict[str, Any]:
    """Return what a plan trains and measures on, as plain data.

    That is the common recipe, the arms, the tuning grid and the conditions of held-out sequences.
    """
    tests = [EXPERIMENTS[number].load() for number in plan.tests]
    arms = distinct_arms(tests)
    conditions = dict.fromkeys(condition for test in tests for condition in test.conditions)
    return {
        "recipe": plan.recipe.as_dict(),
        "arms": {arm.name: asdict(arm) for arm in arms},
        "tuning": asdict(plan.grid) if plan.grid else None,
        "conditions": [asdict(condition) for condition in conditions],
        "held-out sequences": {"answers": EXAMPLES, "maps": SEQUENCES},
    }


def _settings(
    plan: Plan,
    arms: Sequence[Arm],
    root: Path,
    console: Console,
    engine: Engine,
    records: StudyRecords | None,
) -> tuple[dict[str, Settings], Table | None]:
    """Return the settings of each arm, and the table of tuning if there was any."""
    if plan.grid is None:
        scale = float(plan.recipe.model.get("branch_scale", 1.0))
        middle = {arm.name: {k: v[len(v) // 2] for k, v in arm.sweep.items()} for arm in arms}
        return {a.name: Settings(plan.recipe.lr, scale, middle[a.name]) for a in arms}, None
    found = tune(
        plan.recipe,
        arms,
        plan.grid,
        root,
        console,
        engine,
        records.record_tuning if records else None,
    )
    return chosen_settings(found, plan.grid), tuning_table(found, plan.grid)


def _announce(plan: Plan, arms: Sequence[Arm], workers: int, console: Console) -> None:
    """Print what the study costs at most, by the speed of its common recipe on this machine."""
    runs = len(arms) * len(plan.seeds)
    recipes = [arm_recipe(plan.recipe, arm, Settings(plan.recipe.lr)) for arm in arms]
    tokens = len(plan.seeds) * sum(TrainingRun(recipe).cost for recipe in recipes)
    text = f"study {plan.id!r}: {len(arms)} arms x {len(plan.seeds)} seeds = {runs} runs"
    if plan.grid is not None:
        each = [plan.grid.runs(arm) for arm in arms]
        short = [TrainingRun(plan.grid.shortened(recipe)).cost for recipe in recipes]
        tokens += sum(n * cost for n, cost in zip(each, short, strict=True))
        full = [plan.grid.full_runs(arm) for arm in arms]
        tokens += sum(n * TrainingRun(recipe).cost for n, recipe in zip(full, recipes, strict=True))
        tuning = {"short ones": sum(each), "of full length": sum(full)}
        counts = " and ".join(f"{n} {what}" for what, n in tuning.items() if n)
        text += f", and for tuning about {counts}"
    common = plan.recipe.changed(steps=1)
    seconds = tokens * _seconds_per_step(common) / TrainingRun(common).cost / workers
    console.print(
        f"{text}; at most {tokens / 1e6:,.0f}M training tokens, {duration(seconds)} on {workers} "
        "cores if none is done yet, less where the criterion ends runs early",
        highlight=False,
        soft_wrap=True,
    )


def _seconds_per_step(recipe: Recipe) -> float:
    """Time training steps of the common recipe on one thread."""
    data = dataset(recipe, "train", recipe.batch_size)
    with torch.random.fork_rng():
        model = AntiphaseForCausalLM(model_config(recipe, data))
    batch = torch.stack([data[i]["input_ids"] for i in range(recipe.batch_size)])
    return step_seconds(model, batch, recipe.precision)[0]


def _run(
    entry: RegisteredTest,
    test: Experiment,
    plan: Plan,
    runs: Mapping[str, list[TrainingRun]],
    errors: dict[str, str],
    folder: Path,
) -> Result:
    """Measure a test on its trained arms, unless the same has been measured before."""
    result = _blank(entry, test)
    result.arms = {arm.name: _describe(plan.recipe, runs[arm.name][0]) for arm in test.arms}
    mine = {arm.name: runs[arm.name] for arm in test.arms}
    result.study_id, result.seeds, result.keys = plan.id, list(plan.seeds), _keys(test, mine)
    root = folder / "trained"
    for run in (run for group in mine.values() for run in group):
        if not run.finished(root):
            result.why_not = f"{run.title}: {errors.get(run.key, 'was not trained')}"
            return result
    earlier = _stored(entry, folder)
    if earlier is not None and earlier.keys == result.keys and _complete(earlier, test):
        _adopt(result, earlier, test)
        return result
    who = measured_as(entry.number, test)
    measured = test.measure(TrainedModels.finished(mine, root, who))
    require_measured(f"{entry.number} ({entry.title})", test.predictions, measured.effects)
    result.effects = {effect: seed_interval(v) for effect, v in measured.effects.items()}
    result.tables, result.figures = measured.tables, measured.figures
    result.notes = [*measured.notes, *([test.amended] if test.amended else [])]
    path = _measured_file(entry, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps(result_to_json(result), indent=1))
    return result


def _describe(shared: Recipe, run: TrainingRun) -> str:
    """Return the fields in which an arm's recipe differs from the common one, but for the seed."""
    usual, mine = flat_fields(shared.as_dict()), flat_fields(run.recipe.as_dict())
    changed = {k: v for k, v in mine.items() if k != "seed" and usual.get(k) != v}
    return ", ".join(f"{name}={value}" for name, value in changed.items())


def _earlier(entry: RegisteredTest, folder: Path) -> Result:
    """Return the result of an earlier call, if the present code still measures the same."""
    test = entry.load()
    result = _blank(entry, test)
    earlier = _stored(entry, folder)
    if earlier is None:
        result.why_not = NOT_SELECTED
        return result
    if earlier.keys[:1] != [version_of(test)] or [*earlier.arms] != [arm.name for arm in test.arms]:
        result.why_not = "measured earlier with other arms or another version, so left out"
        return result
    if not _complete(earlier, test):
        result.why_not = "measured earlier, without an effect that is predicted now; run it again"
        return result
    result.arms, result.study_id = earlier.arms, earlier.study_id
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
    return {e for prediction in test.predictions for e in prediction.required} <= {*earlier.effects}


def _keys(test: Experiment, runs: Runs) -> list[str]:
    return [version_of(test), *(run.key for mine in runs.values() for run in mine)]


def _measured_file(entry: RegisteredTest, folder: Path) -> Path:
    return folder / "measured" / f"test-{entry.number:02}.json"


def _stored(entry: RegisteredTest, folder: Path) -> Result | None:
    """Return the stored result of a test; None if there is none that can be read."""
    kept: Any = read_json(_measured_file(entry, folder))
    try:
        return None if kept is None else result_from_json(kept)
    except (KeyError, TypeError, ValueError):
        return None  # of another version of the package: measured again


def _claims(
    models: TrainedModels, plan: Plan, runs: Runs, folder: Path
) -> tuple[list[Claim], list[int]]:
    """Return the published numbers beside those of STANDARD and V1, and the seeds of ours."""
    path = folder / "measured" / "claims.json"
    kept = read_json(path)
    if plan.on_text or not models.have_weights(STANDARD, V1):  # not part of it, not trained here
        if kept is None:
            return [], []
    else:
        keys = [MEASURES, *(run.key for arm in (STANDARD, V1) for run in runs[arm.name])]
        if kept is None or kept["keys"] != keys:
            found = [asdict(claim) for claim in published_claims(models)]
            kept = {"keys": keys, "seeds": list(plan.seeds), "claims": found}
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, json.dumps(without_nan(kept), indent=1))
    return [claim_from_json(fields) for fields in kept["claims"]], kept["seeds"]


def _attention(
    plan: Plan, models: TrainedModels, runs: Runs, folder: Path
) -> AttentionExample | None:
    """Return where attention goes on one sequence; an earlier example is kept without V1."""
    if plan.on_text:
        return None
    path = folder / "measured" / "attention.json"
    kept = read_json(path)
    here = [arm for arm in ROW_ARMS if arm in models]
    keys = [MEASURES, *(runs[arm.name][0].key for arm in here)]
    if not models.have_weights(*here):
        return None if kept is None else AttentionExample.from_dict(kept["example"])
    both = STANDARD in models and V1 in models
    if kept is None or (both and kept["keys"] != keys):
        found = attention_example(models)
        if found is None:
            return None
        kept = {"keys": keys, "example": found.as_dict()}
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps(kept, indent=1))
    return AttentionExample.from_dict(kept["example"])
