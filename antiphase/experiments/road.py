"""The road from recurrent networks to differential attention, on recall and on needles.

One small model, two layers, equal parameters; only the mixer of tokens changes. Every mixer is
trained on every task at four learning rates, then at the best one with five other seeds. The
outcome is the accuracy: nothing has to be learned before an arm counts, and nothing is predicted.

`antiphase lab --road` runs it; `road_page.py` writes its page and picture.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from antiphase.evaluation import score_answers
from antiphase.experiments.arms import Arm, Settings, TrainingRun, arm_recipe
from antiphase.experiments.engine import Engine, Job
from antiphase.experiments.grids import final_loss
from antiphase.experiments.measured_values import measured_values
from antiphase.experiments.records import Records
from antiphase.experiments.train_all import longest_first, train_all
from antiphase.experiments.trained_models import TrainedModel
from antiphase.training import Recipe, criterion_of

KEPT = Path("docs/results/road")  # of the repository: finished runs
# The decoder of the 2017 Transformer: sinusoidal positions, norm(x + f(x)) with LayerNorm, ReLU.
_IN_2017 = {
    "position": "sinusoidal",
    "norm": "layer",
    "norm_position": "post",
    "feed_forward": "relu",
    "mlp_bias": True,
    "scale_embedding": True,
    "initialisation": "published",
    "initializer_range": 128**-0.5,  # D^-1/2, as `transformer_2017`
}
ARMS = (
    Arm("GRU", "gru"),
    Arm("LSTM", "lstm"),
    Arm("linear attention", "linear"),
    Arm("gated delta rule", "delta"),
    Arm("delta, no convolution", "delta", options={"convolution": 0}),
    Arm("standard, 2017", "standard", changes={"model": _IN_2017}),
    Arm("standard", "standard"),
    Arm("V1", "diff_v1"),
    Arm("V2", "diff_v2"),
    Arm("DINT", "dint"),
    # heads of width 32: in narrower ones most rows of a new model are dead
    Arm("threshold", "threshold", changes={"model": {"num_attention_heads": 4}}),
    Arm("grouped latent", "grouped_latent"),
)

_SHARED = Recipe(
    size="nano",
    model={"num_attention_heads": 8},
    schedule="wsd",
    warmup=50,
    criterion=0.99,
    steps=800,
    decay=0.2,
    threads=1,
    evaluate_every=50,
    evaluate_examples=128,
    checkpoint_every=200,
)


def _recall(length: int, pairs: int, batch_size: int) -> Recipe:
    """Return multi-query associative recall with three queries per pair.

    Queries are drawn with replacement. With one query of each pair, models of this size learn for
    hundreds of steps to rule out what was answered before, and nothing else.
    """
    options = {
        "length": length,
        "pairs": pairs,
        "queries": 3 * pairs,
        "replacement": True,
        "keys": 16,
        "values": 16,
    }
    return _SHARED.changed(task="recall", task_options=options, batch_size=batch_size)


TASKS = {
    "recall, 64 tokens, 4 pairs": _recall(64, 4, batch_size=32),
    "recall, 128 tokens, 8 pairs": _recall(128, 8, batch_size=16),
    "needles, 64 tokens": _SHARED.changed(
        task="needle",
        task_options={
            "length": 64,
            "keys": 8,
            "values": 16,
            "needles": 4,
            "repeats": 3,
            "noise": 1.0,
        },
        batch_size=32,
    ),
}
RATES = (1e-4, 3e-4, 1e-3, 3e-3)  # first tried up to 1e-2, at which nothing was learned
TUNING_SEED, SEEDS = 950, tuple(range(500, 505))
EXAMPLES = 512  # of the test split


@dataclass(frozen=True)
class RoadResult:
    """One mixer on one task.

    Attributes:
        arm: name of the mixer.
        task: name of the task.
        rates: learning rates that were tried.
        losses: held-out loss of the tuning run at each; infinite if it diverged.
        lr: the rate with the lowest.
        accuracy: on the test split, by seed.
        steps: to the criterion, by seed; None where it was not reached.
    """

    arm: str
    task: str
    rates: list[float]
    losses: list[float]
    lr: float
    accuracy: list[float]
    steps: list[int | None]


def run_road(
    folder: Path,
    console: Console,
    *,
    engine: Engine | None = None,
    arms: Sequence[Arm] = ARMS,
    tasks: dict[str, Recipe] = TASKS,
    rates: Sequence[float] = RATES,
    seeds: Sequence[int] = SEEDS,
    records: Path | None = None,
) -> list[RoadResult]:
    """Tune and train what is missing, and measure; finished runs are not repeated.

    Args:
        folder: of the study.
        console: where progress is shown.
        engine: performs the runs; default: all cores of this machine.
        arms: the mixers.
        tasks: by name, what all mixers share.
        rates: that each mixer is tried at, on each task.
        seeds: of the final runs.
        records: file of finished runs without their weights (`Records`); what it has is not
            trained again.

    Returns:
        One entry per mixer and task; those whose runs failed are left out, with a message.

    Raises:
        RuntimeError: every one of them failed.
    """
    root = folder / "trained"
    by_name = {arm.name: arm for arm in arms}
    pairs = [(arm, task) for task in tasks for arm in by_name]
    count = len(pairs) * (len(rates) + len(seeds))
    tokens = sum(
        recipe.steps * recipe.batch_size * recipe.task_options["length"]
        for recipe in tasks.values()
    )
    console.print(
        f"{count} runs, {len(arms) * (len(rates) + len(seeds)) * tokens / 1e6:.0f}M tokens at most",
        highlight=False,
    )

    def run(arm: str, task: str, lr: float, seed: int) -> TrainingRun:
        return TrainingRun(arm_recipe(tasks[task], by_name[arm], Settings(lr)).changed(seed=seed))

    kept = None if records is None else Records(records, root)
    if kept is not None:
        kept.restore(console=console)

    def record(job: Job) -> None:
        if kept is not None:
            kept.add(job.folder(root))

    tuning = {pair: [run(*pair, lr, TUNING_SEED) for lr in rates] for pair in pairs}
    every = longest_first(r for runs in tuning.values() for r in runs)
    train_all(every, root, console, engine, record)
    losses = {pair: [final_loss(r, root) for r in runs] for pair, runs in tuning.items()}
    best = {
        pair: rates[found.index(min(found))]
        for pair, found in losses.items()
        if math.isfinite(min(found))
    }
    final = {pair: [run(*pair, lr, seed) for seed in seeds] for pair, lr in best.items()}
    by_key = {r.key: r for runs in final.values() for r in runs}

    def measure_and_record(job: Job) -> None:
        _accuracy(by_key[job.key], root)
        record(job)

    errors = train_all(longest_first(by_key.values()), root, console, engine, measure_and_record)
    results = []
    for pair in pairs:
        if pair not in best or any(r.key in errors for r in final[pair]):
            console.print(f"{', '.join(pair)}: failed", highlight=False)
            continue
        with console.status(f"measuring: {', '.join(pair)}"):
            accuracy = [_accuracy(r, root) for r in final[pair]]
        steps = [_steps(r, root) for r in final[pair]]
        results.append(RoadResult(*pair, [*rates], losses[pair], best[pair], accuracy, steps))
    if not results:
        raise RuntimeError(f"{root}: every run failed; the messages above say why")
    return results


def _accuracy(run: TrainingRun, root: Path) -> float:
    """Return the accuracy on the test split; measured once, and kept with the run."""
    model = TrainedModel(run.recipe.attention, run, run.folder(root))

    def measure() -> np.ndarray:
        scores = score_answers(model.load(), model.held_out(EXAMPLES), EXAMPLES)
        return np.array([scores["accuracy"]])

    return float(measured_values(model.folder, f"road: accuracy on {EXAMPLES}", measure)[0])


def _steps(run: TrainingRun, root: Path) -> int | None:
    found = criterion_of(run.folder(root))
    return found.step if found is not None and found.reached else None


def as_json(results: Sequence[RoadResult]) -> list[dict[str, Any]]:
    """Return results as plain data; a loss that is not finite becomes null."""
    return [
        asdict(r) | {"losses": [loss if math.isfinite(loss) else None for loss in r.losses]}
        for r in results
    ]


def from_json(stored: Sequence[dict[str, Any]]) -> list[RoadResult]:
    """Return results from plain data."""
    return [
        RoadResult(**fields | {"losses": [math.inf if x is None else x for x in fields["losses"]]})
        for fields in stored
    ]
