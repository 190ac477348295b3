"""The learning rate of each arm of the study of DEX: runs on a seed that the study does not use."""

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from antiphase.experiments.arms import TrainingRun
from antiphase.experiments.dex_plan import TUNING_SEED, DexPlan
from antiphase.experiments.engine import Engine, Job
from antiphase.experiments.train_all import train_all
from antiphase.experiments.unchain import RESULTS
from antiphase.training.callbacks import read_metrics
from antiphase.training.checkpoints import read_json, write_atomic
from antiphase.training.divergence import DivergenceError


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
    after_each: Callable[[Job], None] | None = None,
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
        if faults := train_all(jobs, root, console, engine, after_each):
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
