"""Run test 14: tune a rate per arm, train every arm with every seed, measure, judge, report.

    FOLDER/lock.json      predictions, design and seeds, written before the first run
    FOLDER/trained/       one folder per run, with its results; no model is kept
    FOLDER/controls.json  controls.md  controls.png

Killed at any moment, the same call goes on: finished runs are not repeated, others continue from
their last checkpoint.
"""

import json
import math
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from rich.console import Console

from antiphase.analysis.before_after import BeforeAfterOptions
from antiphase.analysis.before_after_plots import draw_against
from antiphase.experiments.arms import TrainingRun
from antiphase.experiments.dex_tables import as_markdown, judged, minus_kv_only
from antiphase.experiments.e14_dex import (
    ANNEAL,
    ARMS,
    BENCHMARKS,
    HELD,
    KV,
    NUMBER,
    PREDICTIONS,
    STUDY_ID,
    ArmRun,
    DexArm,
    Runs,
    metrics_of,
)
from antiphase.experiments.engine import Engine
from antiphase.experiments.local_pool import LocalEngine
from antiphase.experiments.lock import check_lock, runs_of, starts_of, write_lock
from antiphase.experiments.records import Records
from antiphase.experiments.results import without_nan
from antiphase.experiments.step_time import step_seconds
from antiphase.experiments.train_all import duration, train_all
from antiphase.experiments.unchain import LOCK as UNCHAIN_LOCK
from antiphase.experiments.unchain import (
    RESULTS,
    check_study,
    read_results,
    require_benchmarks,
    unchain_run,
    unchain_settings,
)
from antiphase.pretrained.methods import METHODS
from antiphase.training import Recipe, load_recipe
from antiphase.training.callbacks import read_metrics
from antiphase.training.checkpoints import read_json, write_atomic
from antiphase.training.components import Components
from antiphase.training.digests import short_digest
from antiphase.training.divergence import DivergenceError
from antiphase.training.provenance import ENVIRONMENT
from antiphase.training.run import LOCK, RECIPE

SEEDS = tuple(range(700, 705))  # of data order, W_D and random heads; no other study has them
TUNING_SEED = 790
MIN_STEPS = 3 * ANNEAL
KEPT = (RECIPE, ENVIRONMENT, RESULTS)  # of a finished run, in its record
REPOSITORY = Path("docs/results/unchain")  # folder with the study's lock and finished runs

TOKENS_PER_ITEM = {"needle": 550, "squad2": 600, "lambada": 200, "hellaswag": 400}
"""About how many tokens a model reads or writes per item of a benchmark, for estimates of time."""


@dataclass(frozen=True)
class DexPlan:
    """What all arms share, and how their rates are chosen.

    Attributes:
        recipe: of every run, except for method, learning rate and seed.
        options: what is measured before and after.
        arms: that are trained.
        rates: learning rates; of every arm the three in the middle are tried, and the neighbours of
            the best one while it lies at the edge of what was tried.
        extensions: how often neighbours are tried.
    """

    recipe: Recipe
    options: BeforeAfterOptions
    arms: tuple[DexArm, ...] = ARMS
    rates: tuple[float, ...] = (5e-5, 1e-4, 2e-4, 4e-4, 8e-4, 1.6e-3, 3.2e-3)
    extensions: int = 2

    @property
    def first_rates(self) -> tuple[float, ...]:
        """Return the three rates that every arm is tried at."""
        middle = len(self.rates) // 2
        return self.rates[middle - 1 : middle + 2]

    def recipe_of(self, arm: DexArm, lr: float, seed: int) -> Recipe:
        """Return the recipe of a run; DEX's options that the arm leaves open are the plan's."""
        kind_of_dex = METHODS[arm.method].Options is METHODS["dex"].Options
        shared = self.recipe.method_options if kind_of_dex else {}
        options = {**shared, **arm.options}
        return self.recipe.changed(method=arm.method, method_options=options, lr=lr, seed=seed)

    def design(self) -> dict[str, Any]:
        """Return what is trained and measured, for the lock."""
        return {
            "recipe": self.recipe.as_dict(),
            "evaluation": asdict(self.options),
            "arms": {arm.name: asdict(arm) for arm in self.arms},
            "tuning": {
                "rates": list(self.rates),
                "extensions": self.extensions,
                "seed": TUNING_SEED,
            },
        }


def trial_plan(
    settings: list[str], *, start: str, steps: int | None = None, text: list[str] | None = None
) -> DexPlan:
    """Return the plan of the study on a model, with changes.

    Args:
        settings: `name=value` texts, as `unchain_settings` takes them.
        start: the pretrained model.
        steps: of a run; default 300.
        text: sources to train on; default: English prose.

    Raises:
        ValueError: a setting is invalid, or would make the study another one.
    """
    shared = load_recipe("unchain").changed(
        batch_size=2, evaluate_every=100, evaluate_examples=32, threads=1, precision="bf16"
    )
    evaluation = {
        "questions": 16,
        "benchmarks": [task for task, _ in BENCHMARKS.values()],
        "benchmark_items": 100,
        "benchmark_dtype": "bfloat16",
    }
    recipe, options = unchain_settings(
        settings,
        recipe=shared,
        evaluation=evaluation,
        text=["prose"] if text is None else text,
        start=start,
        steps=MIN_STEPS if steps is None else steps,
    )
    if recipe.steps < MIN_STEPS:
        raise ValueError(
            f"steps: got {recipe.steps}, expected at least {MIN_STEPS}: annealing takes {ANNEAL} "
            "of them; leave out --steps"
        )
    chosen = {option for arm in ARMS for option in arm.options} & {*recipe.method_options}
    if chosen:
        raise ValueError(
            f"method_options.{min(chosen)}: the arms of --controls differ in it; leave it out"
        )
    return DexPlan(recipe, options)


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


@dataclass(frozen=True, eq=False)
class RateJob(TrainingRun):
    """A run that tries a learning rate; its held-out loss is kept, not its model.

    It is as long as the study's: in a shorter one, annealing would take most of the steps.
    """

    arm: str

    @property
    def title(self) -> str:
        """Return a short description for people."""
        return f"{self.arm}, lr {self.recipe.lr:g}"

    def finished(self, root: Path) -> bool:
        """Return whether its loss is there."""
        return (self.folder(root) / RESULTS).is_file()

    def train_or_resume(self, root: Path) -> None:
        """Train; a run that diverges has no loss, and is not repeated."""
        folder = self.folder(root)
        loss = None
        try:
            super().train_or_resume(root)
            lines = [line for line in read_metrics(folder) if "held_out_loss" in line]
            loss = lines[-1]["held_out_loss"]
        except DivergenceError:
            pass
        write_atomic(folder / RESULTS, json.dumps({"held_out_loss": loss}))
        for name in ("checkpoints", "model", "adapter"):
            shutil.rmtree(folder / name, ignore_errors=True)

    def loss(self, root: Path) -> float:
        """Return the held-out loss of a finished run; infinite if it diverged."""
        found = read_json(self.folder(root) / RESULTS)["held_out_loss"]
        return math.inf if found is None else float(found)


Losses = dict[str, dict[float, float]]
"""Held-out loss by arm and learning rate."""


def tune_rates(
    plan: DexPlan,
    root: Path,
    console: Console,
    engine: Engine | None = None,
    records: Records | None = None,
) -> Losses:
    """Try rates for each arm, on a seed of their own; finished runs are not repeated.

    Raises:
        ValueError: a run failed; one that diverged has an infinite loss.
    """
    losses: Losses = {arm.name: {} for arm in plan.arms}
    for round_ in range(plan.extensions + 1):
        jobs = [
            RateJob(plan.recipe_of(arm, lr, TUNING_SEED), arm.name)
            for arm in plan.arms
            for lr in (plan.first_rates if round_ == 0 else _beyond(plan, losses[arm.name]))
        ]
        if not jobs:
            break
        if faults := train_all(jobs, root, console, engine, _recorder(records, root)):
            key, fault = next(iter(faults.items()))
            raise ValueError(f"{key}: {fault}; rates cannot be chosen, run the same command again")
        for job in jobs:
            losses[job.arm][job.recipe.lr] = job.loss(root)
    return losses


def best_rate(losses: dict[float, float]) -> float:
    """Return the rate with the lowest loss; of equal ones, the lowest rate."""
    return min(losses, key=lambda lr: (losses[lr], lr))


def _beyond(plan: DexPlan, losses: dict[float, float]) -> list[float]:
    """Return the neighbours of the best rate that were not tried."""
    i = plan.rates.index(best_rate(losses))
    around = [plan.rates[j] for j in (i - 1, i + 1) if 0 <= j < len(plan.rates)]
    return [lr for lr in around if lr not in losses]


TUNING_NOTE = (
    "Held-out loss after runs as long as the study's ({steps} steps) with seed {seed}, which the "
    "study does not use. A best rate at the edge may not be the best there is."
)


def tuning_table(plan: DexPlan, losses: Losses) -> dict[str, Any]:
    """Return what was tried and chosen: columns, rows, and a note."""
    tried = sorted({lr for by_rate in losses.values() for lr in by_rate})
    rows = []
    for arm, by_rate in losses.items():
        best = best_rate(by_rate)
        where = "inside" if min(by_rate) < best < max(by_rate) else "at the edge"
        cells = ["" if lr not in by_rate else _loss(by_rate[lr]) for lr in tried]
        rows.append([arm, f"{best:g}", where, *cells])
    note = TUNING_NOTE.format(steps=plan.recipe.steps, seed=TUNING_SEED)
    columns = ["arm", "chosen", "where", *(f"lr {lr:g}" for lr in tried)]
    return {"columns": columns, "rows": rows, "note": note}


def _loss(loss: float) -> str:
    return f"{loss:.4f}" if math.isfinite(loss) else "diverged"


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
    if kept is not None and (restored := kept.restore()):
        console.print(
            f"{restored} finished runs taken from {records}", highlight=False, soft_wrap=True
        )
        locked()  # what was taken must not be older, either
    check_study(root, plan.recipe)
    engine = engine or LocalEngine()
    console.print(cost_line(plan, seeds, engine.workers), highlight=False, soft_wrap=True)
    losses = tune_rates(plan, root, console, engine, kept)
    rates = {arm.name: best_rate(losses[arm.name]) for arm in plan.arms}
    jobs = {
        arm.name: [
            ArmJob(plan.recipe_of(arm, rates[arm.name], seed), arm.name, plan.options)
            for seed in SEEDS[:seeds]
        ]
        for arm in plan.arms
    }
    by_seed = [job for of_a_seed in zip(*jobs.values(), strict=True) for job in of_a_seed]
    faults = train_all(by_seed, root, console, engine, _recorder(kept, root))
    runs: Runs = {
        name: [ArmRun.from_results(read_results(job.folder(root))) for job in own]
        for name, own in jobs.items()
        if all(job.finished(root) for job in own)
    }
    if not runs:
        raise ValueError(f"{root}: no arm could be trained: {next(iter(faults.values()))}")
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


def _recorder(records: Records | None, root: Path) -> Any:
    return None if records is None else lambda job: records.add(job.folder(root))


def cost_line(plan: DexPlan, seeds: int, workers: int) -> str:
    """Say how many runs and steps the study has, and how long it takes, by timing a step."""
    runs, tuning = len(plan.arms) * seeds, len(plan.arms) * len(plan.first_rates)
    steps = (runs + tuning) * plan.recipe.steps
    step, token = _timed(plan)
    recipe, length = plan.recipe, _length(plan)
    scored = recipe.evaluate_examples * length / recipe.evaluate_every  # tokens per step
    measuring = measured_tokens(plan) * token
    seconds = (steps * (step + scored * token) + (runs + 1) * measuring) / workers
    return (
        f"study {STUDY_ID!r}: {len(plan.arms)} arms x {seeds} seeds = {runs} runs of "
        f"{recipe.steps} steps, and {tuning} to choose rates (more where the best is at the edge): "
        f"{steps:,} steps of {recipe.batch_size * length} tokens. "
        f"About {duration(seconds)} on {workers} cores if none is done yet: {step:.2g} s a step, "
        f"{duration(measuring)} to measure a model"
    )


def measured_tokens(plan: DexPlan) -> int:
    """Return about how many tokens a model reads when it is measured."""
    options = plan.options
    benchmarks = sum(TOKENS_PER_ITEM.get(task, 500) for task in options.benchmarks)
    held_out = 2 * options.sequences * _length(plan)  # the loss, then the operation
    questions = options.questions * options.question_length
    return held_out + questions + options.benchmark_items * benchmarks


def _length(plan: DexPlan) -> int:
    return int(plan.recipe.task_options["length"])


def _timed(plan: DexPlan) -> tuple[float, float]:
    """Return the CPU seconds of a training step of DEX, and of a forward pass per token."""
    recipe = plan.recipe_of(HELD, plan.first_rates[0], TUNING_SEED)
    threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as folder, torch.random.fork_rng():
        built = Components.build(recipe, Path(folder), 1)
    torch.set_num_threads(threads)
    batch = torch.stack([built.data[i]["input_ids"] for i in range(recipe.batch_size)])
    step, read = step_seconds(built.tuned.model, batch, recipe.precision)
    return step, read / batch.numel()
