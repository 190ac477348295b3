"""How much of V1's advantage on retrieval is the setting: arms at nine settings, with eight seeds.

    python docs/retrieval_settings.py             # trains and measures what is missing
    python docs/retrieval_settings.py --tables    # prints the tables of what is kept

The primary study chose one setting per arm by the loss as trained, on one seed. All settings that
learn the task have a loss near 0 there, and under stress they differ (docs/log.md). Here each arm
is trained at every setting, as in the synthetic study, and measured under stress and at twice the
length. Chosen after the primary results were seen: descriptive. Finished runs are kept without
their weights in `docs/results/lab/settings.jsonl`.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

from antiphase.analysis.statistics import Interval, student_t
from antiphase.experiments.arms import (
    STANDARD,
    V1,
    V2,
    Arm,
    Settings,
    TrainingRun,
    arm_recipe,
)
from antiphase.experiments.conditions import AS_TRAINED, GRID, STRESS, TWICE_AS_LONG, Condition
from antiphase.experiments.e07_grid import AXES
from antiphase.experiments.engine import Job
from antiphase.experiments.local_pool import LocalEngine
from antiphase.experiments.measured_values import measured_values
from antiphase.experiments.model_measurements import EXAMPLES, accuracy, answers, mass
from antiphase.experiments.plans import SYNTHETIC
from antiphase.experiments.records import Records
from antiphase.experiments.train_all import train_all
from antiphase.experiments.trained_models import TrainedModel
from antiphase.markdown import markdown_table

RECORDS = Path(__file__).parent / "results" / "lab" / "settings.jsonl"
ARMS = {arm.name: arm for arm in (STANDARD, V1, V2)}
RATES, SCALES = (2.5e-4, 5e-4, 1e-3), (0.5, 1.0, 2.0)
SETTINGS = {str(s): s for s in (Settings(lr, scale) for lr in RATES for scale in SCALES)}
LOCKED = str(Settings(1e-3, 2.0))  # of V1 and standard attention in the primary study
CONDITIONS = (STRESS, TWICE_AS_LONG)
SEEDS = tuple(range(941, 949))
WHAT = ("accuracy", "loss", "validation loss")
CELLS = tuple(condition for condition in GRID.values() if condition not in CONDITIONS)
VERSION = "settings, version 1"
COLUMNS = (
    "as trained",
    *(f"{what}, {c.name}" for c in CONDITIONS for what in WHAT),
    *(f"loss, {c.name}" for c in CELLS),
)
Measured = NDArray[np.float64]


def run_of(arm: Arm, settings: Settings, seed: int) -> TrainingRun:
    """Return a run as the synthetic study has it."""
    return TrainingRun(arm_recipe(SYNTHETIC.recipe, arm, settings).changed(seed=seed))


def measured(run: TrainingRun, root: Path) -> Measured:
    """Return the columns of COLUMNS; of standard attention, then the mass on irrelevant tokens."""
    model = TrainedModel("settings", run, run.folder(root))

    def under_stress() -> Measured:
        found = [accuracy(model, AS_TRAINED).mean()]
        for condition in CONDITIONS:
            given = answers(model, condition)
            validation = answers(model, condition, 2 * EXAMPLES, "validation")
            found += [given.correct.mean(), given.loss.mean(), validation.loss.mean()]
        if run.recipe.attention == STANDARD.attention:
            found += [mass(model, "irrelevant", condition).mean() for condition in CONDITIONS]
        return np.array(found)

    def in_cells() -> Measured:
        return np.array([answers(model, cell).loss.mean() for cell in CELLS])

    stress = measured_values(model.folder, VERSION, under_stress)
    cells = measured_values(model.folder, f"{VERSION}, cells", in_cells)
    first = len(COLUMNS) - len(CELLS)
    return np.concatenate([stress[:first], cells, stress[first:]])


def train(arms: list[str], seeds: list[int], root: Path, workers: int | None) -> None:
    """Train and measure what is missing."""
    torch.set_num_threads(1)
    records = Records(RECORDS, root)
    records.restore()

    def measure(job: Job) -> None:
        assert isinstance(job, TrainingRun)
        measured(job, root)
        records.add(job.folder(root))

    for seed in seeds:  # a seed after the other, so that those that are there are complete
        runs = [run_of(ARMS[arm], settings, seed) for settings in SETTINGS.values() for arm in arms]
        for key, fault in train_all(runs, root, Console(), LocalEngine(workers), measure).items():
            print(f"{key}: {fault}")


Cells = dict[tuple[str, str], dict[int, Measured]]
"""What was measured, by arm, setting and seed."""


def kept(root: Path) -> Cells:
    """Return what is there, of seeds that are complete for an arm."""
    found: Cells = {}
    for name, arm in ARMS.items():
        runs = {s: {c: run_of(arm, SETTINGS[c], s) for c in SETTINGS} for s in SEEDS}
        complete = [s for s in SEEDS if all(run.finished(root) for run in runs[s].values())]
        for settings in SETTINGS if complete else ():
            by_seed = {seed: measured(runs[seed][settings], root) for seed in complete}
            found[name, settings] = by_seed
    return found


def column(cells: Cells, arm: str, settings: str, name: str) -> dict[int, float]:
    """Return one number per seed."""
    i = COLUMNS.index(name)
    return {seed: float(values[i]) for seed, values in cells[arm, settings].items()}


def best(cells: Cells, arm: str, condition: Condition, what: str, seeds: list[int]) -> str:
    """Return the setting with the highest mean accuracy, or the lowest loss, over some seeds."""

    def mean_error(settings: str) -> float:
        values = column(cells, arm, settings, f"{what}, {condition.name}")
        mean = float(np.mean([values[seed] for seed in seeds]))
        return -mean if what == "accuracy" else mean

    return min(SETTINGS, key=mean_error)


def at_best(cells: Cells, arm: str, condition: Condition, what: str) -> dict[int, float]:
    """Return one number per seed, at the setting that is best for the other half of the seeds."""
    seeds = [*cells[arm, LOCKED]]
    found: dict[int, float] = {}
    for half, other in ((seeds[::2], seeds[1::2]), (seeds[1::2], seeds[::2])):
        chosen = best(cells, arm, condition, what, other)
        values = column(cells, arm, chosen, f"{what}, {condition.name}")
        found |= {seed: values[seed] for seed in half}
    return dict(sorted(found.items()))


def minus(one: dict[int, float], other: dict[int, float]) -> str:
    """Return the interval of a difference over the seeds that both have."""
    shared = [seed for seed in one if seed in other]
    return str(student_t([one[seed] - other[seed] for seed in shared]))


def mean_over_scales(cells: Cells, arm: str, lr: float, name: str) -> dict[int, float]:
    """Return one number per seed: the mean over the settings with a rate."""
    of_rate = [
        column(cells, arm, text, name) for text, settings in SETTINGS.items() if settings.lr == lr
    ]
    return {seed: float(np.mean([values[seed] for values in of_rate])) for seed in of_rate[0]}


def at_best_rate(cells: Cells, arm: str, name: str) -> dict[int, float]:
    """Return the mean over scales by seed, at the rate that is best for the other half of seeds."""
    rates = [mean_over_scales(cells, arm, lr, name) for lr in RATES]
    seeds = [*rates[0]]
    found: dict[int, float] = {}
    for half, other in ((seeds[::2], seeds[1::2]), (seeds[1::2], seeds[::2])):
        sums = [sum(of_rate[seed] for seed in other) for of_rate in rates]
        values = rates[sums.index(max(sums))]
        found |= {seed: values[seed] for seed in half}
    return dict(sorted(found.items()))


def _with_gaps(values: dict[str, dict[int, float]]) -> list[str]:
    """Return the interval of each arm, then of each arm but the first minus the first."""
    means = (str(student_t([*by_seed.values()])) for by_seed in values.values())
    first, *others = values.values()
    return [*means, *(minus(one, first) for one in others)]


def by_setting(cells: Cells, condition: Condition) -> str:
    """Return the accuracy of each arm at each setting, and the differences to standard."""
    arms, rows = _arms(cells), []
    name = f"accuracy, {condition.name}"
    for settings in SETTINGS:
        accuracies = {arm: column(cells, arm, settings, name) for arm in arms}
        learned = [column(cells, arm, settings, "as trained").values() for arm in arms]
        rows.append(
            [
                settings,
                *_with_gaps(accuracies),
                ", ".join(str(sum(value >= 0.99 for value in values)) for values in learned),
                noise(cells, settings, condition),
            ]
        )
    for lr in RATES:
        of_rate = {arm: mean_over_scales(cells, arm, lr, name) for arm in arms}
        rows.append([f"lr {lr:g}, mean over scales", *_with_gaps(of_rate), "", ""])
    of_best = {arm: at_best_rate(cells, arm, name) for arm in arms}
    rows.append(["best rate, mean over scales", *_with_gaps(of_best), "", ""])
    values = {arm: at_best(cells, arm, condition, "accuracy") for arm in arms}
    rows.append(["best setting", *_with_gaps(values), "", ""])
    gaps_of = [f"{arm} minus standard" for arm in arms[1:]]
    last = ["seeds that learned", "mass on I, standard"]
    return markdown_table(["setting", *arms, *gaps_of, *last], rows)


def at_best_settings(cells: Cells, condition: Condition) -> str:
    """Return which setting is the best of each arm, and the loss where the other half chose it."""
    rows = []
    for arm in _arms(cells):
        values = at_best(cells, arm, condition, "loss")
        gap = minus(values, at_best(cells, STANDARD.name, condition, "loss"))
        by_accuracy, by_loss = (best(cells, arm, condition, w, [*values]) for w in WHAT[:2])
        loss = str(student_t([*values.values()]))
        rows.append([arm, by_accuracy, by_loss, loss, "" if arm == STANDARD.name else gap])
    columns = ["arm", "best by accuracy", "best by loss", "loss, by the other half"]
    columns.append("minus standard")
    return markdown_table(columns, rows)


def growth(cells: Cells) -> str:
    """Return how the loss grows with noise and with length (test 7), by rate, and V1's gains."""
    effects = {
        "near minus far, mean over lengths": AXES.by_noise,
        "1.5x minus 1x length, mean over noise": AXES.by_length,
    }
    rows = []
    for lr in RATES:
        losses = {
            arm: {c: mean_over_scales(cells, arm, lr, f"loss, {GRID[c].name}") for c in GRID}
            for arm in _arms(cells)
        }
        for effect, of in effects.items():
            by_arm = {}
            for arm, cell in losses.items():
                arrays = {c: [np.array([v]) for v in values.values()] for c, values in cell.items()}
                grown = (float(seed.mean()) for seed in of(arrays))
                by_arm[arm] = dict(zip(cell[1.0, "far"], grown, strict=True))
            rows.append([f"lr {lr:g}", effect, *_with_gaps(by_arm)])
    arms = _arms(cells)
    gaps = [f"{arm} minus standard" for arm in arms[1:]]
    return markdown_table(["rate, mean over scales", "growth of the loss", *arms, *gaps], rows)


def noise(cells: Cells, settings: str, condition: Condition) -> str:
    """Return the mass of standard attention's retrieval heads on irrelevant tokens."""
    place = len(COLUMNS) + CONDITIONS.index(condition)
    by_seed = cells[STANDARD.name, settings].values()
    return f"{np.mean([values[place] for values in by_seed]):.2f}"


def tables(cells: Cells) -> str:
    """Return the tables of both conditions, and that of the growth of the loss."""
    if not _arms(cells):
        return "no seed is complete yet"
    parts = []
    for condition in CONDITIONS:
        seeds = ", ".join(str(len(by_seed)) for by_seed in (cells[a, LOCKED] for a in _arms(cells)))
        parts += [
            f"Accuracy, {condition.name}; seeds: {seeds}. The best rate and the best setting are "
            "those of the other half of the seeds.",
            by_setting(cells, condition),
            at_best_settings(cells, condition),
        ]
    parts += ["Loss on the answer, by length and distractors (test 7)", growth(cells)]
    return "\n\n".join(parts)


def _arms(cells: Cells) -> list[str]:
    """Return the arms with at least two complete seeds: half of them choose for the others."""
    return [name for name in ARMS if len(cells.get((name, LOCKED), [])) > 1]


def kept_cells() -> Cells:
    """Return what the committed records have."""
    with tempfile.TemporaryDirectory() as root:
        Records(RECORDS, Path(root)).restore()
        return kept(Path(root))


def gain_at_best_rates() -> Interval:
    """Return V1 minus standard attention in accuracy under stress, each at its best rate."""
    cells, name = kept_cells(), f"accuracy, {STRESS.name}"
    one, other = (at_best_rate(cells, arm.name, name) for arm in (V1, STANDARD))
    return student_t([one[seed] - other[seed] for seed in one])


def main() -> None:
    """Train what is missing, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arms", nargs="+", default=[*ARMS], choices=[*ARMS])
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--out", type=Path, default=Path("runs/retrieval-settings"))
    parser.add_argument("--workers", type=int, help="processes [one per core]")
    parser.add_argument("--tables", action="store_true", help="print the tables of what is kept")
    options = parser.parse_args()
    if options.tables:
        print(tables(kept_cells()))
        return
    train(options.arms, options.seeds, options.out, options.workers)
    print(tables(kept(options.out)))


if __name__ == "__main__":
    main()
