"""Test 14: is it DEX's operation that helps? DEX and its controls, at equal steps and data.

O + lam f_D(O) is no control: with W_D -> -W_D it is DEX itself. W_D starts from a symmetric
distribution and the optimiser treats both signs alike, so both give the same distribution of
models, and no number of runs could tell them apart.

An operation that never switched on cannot decide between the readings: every prediction has a gate
on its size, and below it the verdict is `invalid`.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from antiphase.analysis.before_after import SWITCHED_ON, Array, BeforeAfterOptions, ModelScores
from antiphase.analysis.before_after_plots import draw_against
from antiphase.analysis.before_after_table import ROWS, before_and_after
from antiphase.analysis.statistics import (
    Interval,
    Values,
    difference,
    example_interval,
    seed_interval,
)
from antiphase.experiments.arms import TrainingRun
from antiphase.experiments.engine import Engine
from antiphase.experiments.report.markdown import cells_table
from antiphase.experiments.results import without_nan
from antiphase.experiments.train_all import train_all
from antiphase.experiments.unchain import RESULTS, check_study, read_results, unchain_run
from antiphase.experiments.verdicts import (
    Effect,
    Prediction,
    Verdict,
    manipulation,
    require_one_primary,
)
from antiphase.pretrained.methods import CONTROLS, METHODS
from antiphase.training import Recipe
from antiphase.training.checkpoints import write_atomic
from antiphase.training.digests import short_digest

LOSS, CORRECT = "loss of held-out text", "needles found"
COUNTS = {LOSS: 0.01, CORRECT: 0.05}  # nats; fraction of the questions
MEASURES = {LOSS: "loss", CORRECT: "correct"}

# Written before any run. The claim: the operation itself helps. The doubt: it is inert, what helps
# is the tuning of W_K, W_V and W_O around it.
# What the claim expects to be larger comes first: the control's loss, the needles found by DEX.
# Amended after three seeds (0, 1, 2) were seen, in which lam ended at 0.0035 at most: the gate is
# new, and the contrast with the opposite sign is gone. A verdict needs other seeds.
GAINS = {
    LOSS: Effect(LOSS, "kvo-only", versus="dex"),
    CORRECT: Effect(CORRECT, "dex", versus="kvo-only"),
}
OPERATION = Effect("operation, fraction of the heads' output", "dex")
REASONS = {"claim": "it helps", "doubt": "it is inert"}
PREDICTIONS = tuple(
    Prediction(
        reading,
        effect,
        "more" if reading == "claim" else "same",
        COUNTS[measure],
        because,
        gates=(manipulation(OPERATION, SWITCHED_ON),),
        primary=measure == LOSS,
    )
    for reading, because in REASONS.items()
    for measure, effect in GAINS.items()
)
require_one_primary("14 (DEX)", PREDICTIONS)


@dataclass(frozen=True)
class MethodRun:
    """What one run measured; `operation` is empty for a method without DEX."""

    before: ModelScores
    after: ModelScores
    operation: Array  # [sequences]

    @classmethod
    def from_results(cls, results: dict[str, Any]) -> "MethodRun":
        """Return what a run's results.json holds."""
        return cls(*before_and_after(results), np.array(results["operation"]))


Runs = list[MethodRun]  # one per seed


@dataclass(frozen=True, eq=False)
class UnchainRun(TrainingRun):
    """One method and seed, measured before and after; its result is kept, not its model."""

    options: BeforeAfterOptions

    @property
    def key(self) -> str:
        """Return a name of everything that decides the outcome."""
        digest = short_digest([self.recipe.as_dict(), asdict(self.options)])
        return f"{self.recipe.method}-{self.recipe.seed}-{digest}"

    @property
    def title(self) -> str:
        """Return a short description for people."""
        return self.recipe.title

    def finished(self, root: Path) -> bool:
        """Return whether its results are there."""
        return (self.folder(root) / RESULTS).is_file()

    def perform(self, root: Path) -> None:
        """Run it, resume it, or do nothing if it is finished."""
        folder = self.folder(root)
        unchain_run(self.recipe, self.options, folder, quiet=True, keep_model=False, shared=root)


def compare_controls(
    recipe: Recipe,
    options: BeforeAfterOptions,
    root: Path,
    console: Console,
    seeds: Sequence[int],
    engine: Engine | None = None,
) -> dict[str, Any]:
    """Run DEX and every control with each seed.

    Args:
        recipe: of DEX; a control differs in its method, and takes the options it knows.
        options: how much is measured.
        root: folder of the study.
        console: for progress.
        seeds: of data order and initialisation.
        engine: runs the jobs; by default one process per core.

    Returns:
        Tables, effects and verdicts, as stored in controls.json.

    Raises:
        ValueError: a run failed, or the folder holds runs of other weights or another text.
    """
    jobs = {
        method: [
            UnchainRun(_control(recipe, method).changed(seed=seed, threads=1), options)
            for seed in seeds
        ]
        for method in ("dex", *CONTROLS)
    }
    every = [job for of_a_seed in zip(*jobs.values(), strict=True) for job in of_a_seed]
    check_study(root, recipe)
    faults = train_all(every, root, console, engine)
    if faults:
        key, fault = next(iter(faults.items()))
        raise ValueError(f"{key}: {fault} ({len(faults)} of {len(every)} runs failed)")
    found = {
        method: [MethodRun.from_results(read_results(job.folder(root))) for job in own]
        for method, own in jobs.items()
    }
    effects = measured_effects(found)
    judgements = [p.judge(effects) for p in PREDICTIONS]
    results = {
        "recipe": recipe.as_dict(),
        "evaluation": asdict(options),
        "seeds": list(seeds),
        "table": _rows(found),
        "against_dex": _against(found),
        "effects": [asdict(effect) | asdict(interval) for effect, interval in effects.items()],
        "verdicts": [
            {
                "reading": p.reading,
                "predicts": f"{p.effect}: {p.bound}",
                "measured": str(effects[p.effect]),
                "gates": "; ".join(map(str, judgement.gates)),
                "verdict": judgement.verdict.value,
            }
            for p, judgement in zip(PREDICTIONS, judgements, strict=True)
        ],
    }
    drawn = {
        measure: {
            control: seed_interval(_gain(found, "dex", control, field)) for control in CONTROLS
        }
        for measure, field in MEASURES.items()
    }
    draw_against(drawn, root / "controls.png")
    write_atomic(root / "controls.json", json.dumps(without_nan(results), indent=1))
    write_atomic(root / "controls.md", as_markdown(results))
    return results


def _control(recipe: Recipe, method: str) -> Recipe:
    """Return the recipe with another method; its options are DEX's where it is a kind of DEX."""
    kind_of_dex = METHODS[method].Options is METHODS["dex"].Options
    return recipe.changed(
        method=method, method_options=recipe.method_options if kind_of_dex else {}
    )


def _gain(found: dict[str, Runs], one: str, other: str, field: str) -> Values:
    """Return one method minus another, paired by seed and example."""
    return difference(_after(found[one], field), _after(found[other], field))


def measured_effects(found: dict[str, Runs]) -> dict[Effect, Interval]:
    """Return every effect that the predictions and their gates name."""
    effects = {OPERATION: _operation(found["dex"])}
    for measure, effect in GAINS.items():
        assert effect.versus is not None
        gain = _gain(found, effect.arm, effect.versus, MEASURES[measure])
        effects[effect] = seed_interval(gain)
    return effects


def _operation(runs: Runs) -> Interval:
    return seed_interval([run.operation for run in runs])


def _after(runs: Runs, field: str) -> Values:
    return [getattr(run.after, field) for run in runs]


COLUMNS = ["", *(title.partition(",")[0] for title in ROWS)]
METHOD_COLUMNS = [*COLUMNS, "operation"]


def _rows(found: dict[str, Runs]) -> list[list[str]]:
    """Return one row per method: every measure after training; the base model first."""
    base = found["dex"][0].before
    rows = [["base", *(str(example_interval(getattr(base, f))) for f in ROWS.values()), "-"]]
    for method, runs in found.items():
        scores = [str(seed_interval(_after(runs, f))) for f in ROWS.values()]
        has_operation = runs[0].operation.size > 0
        rows.append([method, *scores, str(_operation(runs)) if has_operation else "-"])
    return rows


def _against(found: dict[str, Runs]) -> list[list[str]]:
    """Return one row per control: DEX minus it."""
    return [
        [f"dex minus {m}", *(str(seed_interval(_gain(found, "dex", m, f))) for f in ROWS.values())]
        for m in found
        if m != "dex"
    ]


VERDICT_COLUMNS = ["reading", "predicts", "measured", "gates", "verdict"]


def as_markdown(results: dict[str, Any]) -> str:
    """Return the tables as Markdown."""
    parts = [
        cells_table(METHOD_COLUMNS, results["table"]),
        cells_table(COLUMNS, results["against_dex"]),
        cells_table(VERDICT_COLUMNS, verdict_rows(results)),
        "\n".join(f"- **{m}**: {METHODS[m].description}" for m in ("dex", *CONTROLS)),
    ]
    return "\n\n".join(parts) + "\n"


def verdict_rows(results: dict[str, Any]) -> list[list[str]]:
    """Return one row per prediction."""
    return [
        [v["reading"], v["predicts"], v["measured"], v["gates"], Verdict(v["verdict"]).label]
        for v in results["verdicts"]
    ]
