"""Run test 14: tune a rate per arm, train every arm with every seed, measure, judge, report.

    FOLDER/lock.json      predictions, design and seeds, written before the first run
    FOLDER/trained/       one folder per run, with its results; no model is kept
    FOLDER/controls.json  controls.md  controls.png

Killed at any moment, the same call goes on: finished runs are not repeated, others continue from
their last checkpoint.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Console

from antiphase.analysis.before_after import BeforeAfterOptions
from antiphase.analysis.before_after_plots import draw_against
from antiphase.experiments.arms import TrainingRun
from antiphase.experiments.dex_plan import SEEDS, DexPlan, cost_line
from antiphase.experiments.dex_rates import best_rate, tune_rates, tuning_table
from antiphase.experiments.dex_tables import as_markdown, judged, minus_kv_only
from antiphase.experiments.e14_dex import (
    KV,
    NUMBER,
    PREDICTIONS,
    STUDY_ID,
    ArmRun,
    Runs,
    metrics_of,
)
from antiphase.experiments.engine import Engine
from antiphase.experiments.local_pool import LocalEngine
from antiphase.experiments.lock import check_lock, runs_of, starts_of, write_lock
from antiphase.experiments.records import Records
from antiphase.experiments.results import without_nan
from antiphase.experiments.train_all import train_all
from antiphase.experiments.unchain import LOCK as UNCHAIN_LOCK
from antiphase.experiments.unchain import (
    RESULTS,
    check_study,
    read_results,
    require_benchmarks,
    unchain_run,
)
from antiphase.training.checkpoints import write_atomic
from antiphase.training.digests import short_digest
from antiphase.training.provenance import ENVIRONMENT
from antiphase.training.run import LOCK, RECIPE

KEPT = (RECIPE, ENVIRONMENT, RESULTS)  # of a finished run, in its record
SAME_LOSS = 1e-3  # of the base model, between machines
REPOSITORY = Path("docs/results/unchain")  # folder with the study's lock and finished runs


@dataclass(frozen=True, eq=False)
class ArmJob(TrainingRun):
    """One arm and seed, measured before and after; its results are kept, not its model."""

    locks: ClassVar[tuple[str, ...]] = (LOCK, UNCHAIN_LOCK)
    arm: str
    options: BeforeAfterOptions

    @property
    def key(self) -> str:
        """Return a name of everything that decides the outcome."""
        digest = short_digest([self.recipe.as_dict(), asdict(self.options)])
        return f"{self.recipe.method}-{self.recipe.seed}-{digest}"

    @property
    def title(self) -> str:
        """Return a short description for people."""
        return f"{self.arm}, seed {self.recipe.seed}"

    def finished(self, root: Path) -> bool:
        """Return whether its results are there."""
        return (self.folder(root) / RESULTS).is_file()

    def train_or_resume(self, root: Path) -> None:
        """Measure, train and measure again."""
        folder = self.folder(root)
        unchain_run(self.recipe, self.options, folder, quiet=True, keep_model=False, shared=root)


def lock_trial(plan: DexPlan, folder: Path) -> dict[str, Any]:
    """Lock predictions, design and seeds, before any run.

    Raises:
        LockError: a run with one of the seeds exists, or another lock does.
    """
    existing = [(path.name, path) for path in runs_of(SEEDS, folder / "trained")]
    return write_lock(STUDY_ID, SEEDS, {NUMBER: PREDICTIONS}, plan.design(), folder, existing)


def run_trial(
    plan: DexPlan,
    folder: Path,
    console: Console,
    *,
    seeds: int = len(SEEDS),
    engine: Engine | None = None,
    records: Path | None = None,
) -> dict[str, Any]:
    """Tune, train, measure and judge; what was done before is not repeated.

    Args:
        plan: of the study; as it was locked.
        folder: of the study, with its lock.
        console: for progress.
        seeds: how many of the locked seeds are run; a later call may have more.
        engine: performs the runs; default: one process per core.
        records: file of finished runs (`Records`); what it has is not trained again.

    Returns:
        Tables, effects and verdicts, as stored in controls.json.

    Raises:
        LockError: there is no lock, or the plan is not the locked one.
        ValueError: benchmarks are not installed, the folder holds runs of other weights or another
            text, or no arm could be trained.
    """
    root = folder / "trained"

    def locked() -> dict[str, Any]:
        predictions, began = {NUMBER: PREDICTIONS}, starts_of(SEEDS, root)
        command = f"antiphase unchain {plan.recipe.start} --controls --lock --out {folder}"
        return check_lock(STUDY_ID, SEEDS, predictions, plan.design(), folder, began, command)

    lock = locked()
    require_benchmarks(plan.options)
    kept = None if records is None else Records(records, root, KEPT)
    if kept is not None and kept.restore(console=console):
        locked()  # what was taken must not be older, either
    check_study(root, plan.recipe)
    engine = engine or LocalEngine()
    console.print(cost_line(plan, seeds, engine.workers), highlight=False, soft_wrap=True)
    after_each = None if kept is None else lambda job: kept.add(job.folder(root))
    losses = tune_rates(plan, root, console, engine, after_each)
    rates = {arm.name: best_rate(losses[arm.name]) for arm in plan.arms}
    jobs = {
        arm.name: [
            ArmJob(plan.recipe_of(arm, rates[arm.name], seed), arm.name, plan.options)
            for seed in SEEDS[:seeds]
        ]
        for arm in plan.arms
    }
    by_seed = [job for of_a_seed in zip(*jobs.values(), strict=True) for job in of_a_seed]
    faults = train_all(by_seed, root, console, engine, after_each)
    runs: Runs = {
        name: [ArmRun.from_results(read_results(job.folder(root))) for job in own]
        for name, own in jobs.items()
        if all(job.finished(root) for job in own)
    }
    if not runs:
        raise ValueError(f"{root}: no arm could be trained: {next(iter(faults.values()))}")
    _check_base(runs)
    failed = {job.title: faults[job.key] for job in by_seed if job.key in faults}
    results = {
        "lock": lock,
        "seeds": list(SEEDS[:seeds]),
        "failed": failed,
        "tuning": tuning_table(plan, losses),
        **judged(runs, rates, lock, SEEDS[:seeds]),
    }
    if KV.name in runs:
        drawn = {metric: minus_kv_only(runs, metric) for metric in metrics_of(runs)}
        draw_against(drawn, KV.name, folder / "controls.png")
    write_atomic(folder / "controls.json", json.dumps(without_nan(results), indent=1))
    write_atomic(folder / "controls.md", as_markdown(results))
    return results


def _check_base(runs: Runs) -> None:
    """Raise if runs, perhaps of several machines, did not begin with the same model and text."""
    losses = {float(run.before.loss.mean()): name for name, own in runs.items() for run in own}
    low, high = min(losses), max(losses)
    if high - low > SAME_LOSS:
        raise ValueError(
            f"base model: has a held-out loss of {low:.4f} before {losses[low]}, of {high:.4f} "
            f"before {losses[high]}; their weights, text or versions differ: remove the runs of "
            "one of them, with their records"
        )
