"""Controls of the studies of nano models on text: a gap, and its cheapest explanations.

    python docs/ladder_controls.py                          # trains and measures what is missing
    python docs/ladder_controls.py --tables                 # prints the table of what is kept
    python docs/ladder_controls.py --of nano-short-tuning   # those of the withdrawn study

- `nano`: short runs chose the branch scale of standard attention among settings that had hardly
  begun to attend; is another one better after the full length? In two of its five seeds (221, 223)
  its attention branch outgrows the stream within the 50 steps of warm-up; does a longer one help
  these, and does it help V1, whose head norm bounds the branch? Does V1 have too few heads at this
  size (2, where standard attention has 4), or does its lam learn at too high a rate? And are rates
  that were best on the tuning seed, but close to those that diverge, too high for V2 with the
  published start and for gated attention?
- `nano-short-tuning`: is a gap the learning rate, or the embeddings?

Each control is an arm of the study with one change, on seeds of the study, so that it is compared
with the study's own runs of these seeds. The seeds are few, and no control is part of a lock:
descriptive. Finished runs are kept without their weights in the study's `controls.jsonl`.
"""

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from rich.console import Console

from antiphase.analysis.statistics import Interval, student_t
from antiphase.experiments.arms import (
    GATED,
    STANDARD,
    V1,
    V2,
    Arm,
    Settings,
    TrainingRun,
    arm_recipe,
)
from antiphase.experiments.e02_fixed_lambda import FIXED
from antiphase.experiments.e20_ladder import LOSS
from antiphase.experiments.e21_start import STARTS, started
from antiphase.experiments.engine import Job
from antiphase.experiments.local_pool import LocalEngine
from antiphase.experiments.measured_values import measured_values, stored_values
from antiphase.experiments.model_measurements import Numbers
from antiphase.experiments.plans import LADDER_NANO
from antiphase.experiments.records import Records
from antiphase.experiments.results import load_study
from antiphase.experiments.text_measurements import held_out_loss, loss_on_hits, loss_on_rest
from antiphase.experiments.train_all import train_all
from antiphase.experiments.trained_models import TrainedModel, has_weights
from antiphase.experiments.training_tables import attention_ratio
from antiphase.markdown import markdown_table

LADDER = Path(__file__).parent / "results" / "ladder"
MEASURED: dict[str, Callable[[TrainedModel], Numbers]] = {  # by the columns of test 21
    "loss": held_out_loss,
    "on recall hits": loss_on_hits,
    "on the rest": loss_on_rest,
}
EARLY = "attention over stream, step 50"
(PUBLISHED,) = STARTS
SCALED = {"initialisation": "published", "scale_embedding": True}


@dataclass(frozen=True)
class Control:
    """A changed arm of the study.

    Attributes:
        name: in the table.
        arm: of the control.
        settings: learning rate and branch scale.
        versus: the arms of the study, or other controls, that it is compared with.
        seeds: of the study; none: its first two.
    """

    name: str
    arm: Arm
    settings: Settings
    versus: tuple[str, ...]
    seeds: tuple[int, ...] = ()

    def run(self, seed: int) -> TrainingRun:
        """Return its run of a seed."""
        return TrainingRun(
            arm_recipe(LADDER_NANO.recipe, self.arm, self.settings).changed(seed=seed)
        )


def _at_rate(lr: float, arm: Arm, branch_scale: float = 1.0, *seeds: int) -> Control:
    """Return an arm at another rate or branch scale."""
    settings = Settings(lr, branch_scale)
    versus = tuple(dict.fromkeys((STANDARD.name, arm.name)))
    return Control(f"{arm.name}, {settings}", arm, settings, versus, seeds)


def _scaled_embeddings(arm: Arm, lr: float) -> Control:
    """Return an arm with the published start, but with scaled embeddings."""
    name = f"{arm.name}, {PUBLISHED}, embeddings scaled, lr {lr:g}"
    changed = replace(arm, changes={"model": SCALED})
    return Control(name, changed, Settings(lr), (STANDARD.name, started(arm, PUBLISHED).name))


def _with_heads(arm: Arm, heads: int, settings: Settings, *versus: str) -> Control:
    """Return an arm with another number of heads; V1 has half of it."""
    changed = replace(arm, changes={"model": {"num_attention_heads": heads}})
    own = heads // 2 if arm == V1 else heads
    return Control(f"{arm.name}, {own} heads", changed, settings, (arm.name, *versus))


def _warm_up(arm: Arm, steps: int, settings: Settings, *seeds: int) -> Control:
    """Return an arm whose learning rate rises in more steps than the 50 of the study."""
    changed = replace(arm, changes={"warmup": float(steps)})
    versus = tuple(dict.fromkeys((arm.name, STANDARD.name)))
    name = f"{arm.name}, warm-up of {steps} steps"
    against = (f"{STANDARD.name}, warm-up of {steps} steps",) if arm != STANDARD else ()
    return Control(name, changed, settings, (*versus, *against), seeds)


def _fixed_lam(lam: float, settings: Settings) -> Control:
    """Return V1 with a lam that is not learned."""
    return Control(f"lam = {lam:g}", FIXED[lam], settings, (STANDARD.name, V1.name))


@dataclass(frozen=True)
class Controls:
    """The controls of a study.

    Attributes:
        folder: of the study's results; theirs are beside them.
        seeds: of the study.
        every: the controls.
    """

    folder: Path
    seeds: tuple[int, ...]
    every: tuple[Control, ...]

    @property
    def records(self) -> Path:
        """Return the file of finished runs."""
        return self.folder / "controls.jsonl"


TUNED, TUNED_V1 = Settings(8e-3, 0.25), Settings(8e-3, 8.0)  # as the study's tuning chose
CONTROLS = {
    "nano": Controls(
        LADDER / "nano",
        LADDER_NANO.seeds,
        (
            _at_rate(8e-3, STANDARD, 2.0, *LADDER_NANO.seeds),
            _warm_up(STANDARD, 400, TUNED, *LADDER_NANO.seeds),
            _warm_up(V1, 400, TUNED_V1, *LADDER_NANO.seeds),
            _with_heads(STANDARD, 8, TUNED),
            _with_heads(V1, 8, TUNED_V1, STANDARD.name, f"{STANDARD.name}, 8 heads"),
            _fixed_lam(0.5, TUNED_V1),
            _fixed_lam(0.0, TUNED_V1),
            _at_rate(4e-3, started(V2, PUBLISHED)),
            _at_rate(8e-3, GATED),
        ),
    ),
    "nano-short-tuning": Controls(
        LADDER / "nano-short-tuning",
        tuple(range(210, 215)),
        (
            _at_rate(8e-3, STANDARD, 0.25),
            _at_rate(4e-3, V1, 4.0),
            _at_rate(4e-3, V2, 4.0),
            _at_rate(4e-3, GATED, 2.0),
            _scaled_embeddings(STANDARD, 2e-3),
            _scaled_embeddings(V1, 4e-3),
            _scaled_embeddings(V2, 4e-3),
        ),
    ),
}


def measured(run: TrainingRun, root: Path) -> dict[str, float]:
    """Return what is measured of a finished run, once: losses, and `EARLY`.

    Runs without weights have what was measured where they were trained.
    """
    model = TrainedModel("control", run, run.folder(root))
    kept = stored_values(model.folder)
    every = {**MEASURED, EARLY: partial(attention_ratio, step=50)}
    return {
        name: float(measured_values(model.folder, _kept_as(name), partial(measure, model)).mean())
        for name, measure in every.items()
        if _kept_as(name) in kept or has_weights(model.folder / "model")
    }


def _kept_as(name: str) -> str:
    return "control: held-out loss" if name == "loss" else f"control: {name}"


def train(controls: Controls, root: Path, workers: int | None) -> None:
    """Train and measure what is missing."""
    torch.set_num_threads(1)
    records = Records(controls.records, root)
    records.restore()

    def measure(job: Job) -> None:
        assert isinstance(job, TrainingRun)
        measured(job, root)
        records.add(job.folder(root))

    runs = [c.run(seed) for c in controls.every for seed in c.seeds or controls.seeds[:2]]
    for key, fault in train_all(runs, root, Console(), LocalEngine(workers), measure).items():
        print(f"{key}: {fault}")


BySeed = dict[int, dict[str, float]]
"""Losses of an arm by seed and name."""


def losses_of_study(folder: Path) -> dict[str, BySeed]:
    """Return the losses of the study's arms, from the tables of tests 11 and 21."""
    study = load_study(folder)
    found: dict[str, BySeed] = {}
    for number, columns in ((11, {LOSS: "loss"}), (21, {name: name for name in MEASURED})):
        table = next(result for result in study.results if result.number == number).tables[0]
        for row in table.rows:
            arm = found.setdefault(str(row[0]), {seed: {} for seed in study.seeds})
            for column, name in columns.items():
                cell = row[table.columns.index(column)]
                assert isinstance(cell, Interval)
                assert cell.by_seed is not None
                for seed, value in zip(study.seeds, cell.by_seed, strict=True):
                    arm[seed][name] = value
    return found


def table(controls: Controls, root: Path) -> str:
    """Return the losses of the controls that are kept, and differences to runs of the same seed."""
    found = losses_of_study(controls.folder)
    for control in controls.every:
        runs = {seed: control.run(seed) for seed in controls.seeds}
        found[control.name] = {
            seed: measured(run, root) for seed, run in runs.items() if run.finished(root)
        }
    rows = []
    for control in controls.every:
        own = found[control.name]
        values = ", ".join(f"{of_seed['loss']:.3f}" for of_seed in own.values())
        for versus in control.versus if own else ():
            gaps = [_gaps(own, found[versus], name) for name in MEASURED]
            early = ", ".join(
                f"{of_seed[EARLY]:.2f}" for of_seed in own.values() if EARLY in of_seed
            )
            seeds = ", ".join(map(str, own))
            rows.append([control.name, seeds, values, versus, *gaps, early])
    columns = ["control", "seeds", "loss", "minus", "difference", *list(MEASURED)[1:], EARLY]
    return markdown_table(columns, rows)


def _gaps(own: BySeed, other: BySeed, name: str) -> str:
    """Return differences by seed, and their interval from three seeds on."""
    gaps = [
        own[seed][name] - other[seed][name]
        for seed in own
        if name in own[seed] and name in other.get(seed, {})
    ]
    text = ", ".join(f"{gap:+.3f}" for gap in gaps)
    return text if len(gaps) < 3 else f"{text}: {student_t(gaps)}"


def main() -> None:
    """Train what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--of", choices=CONTROLS, default=next(iter(CONTROLS)), help="the study")
    parser.add_argument("--out", type=Path, default=Path("runs/ladder-controls"))
    parser.add_argument("--workers", type=int, help="processes [one per core]")
    parser.add_argument("--tables", action="store_true", help="print the table of what is kept")
    options = parser.parse_args()
    controls = CONTROLS[options.of]
    if options.tables:
        with tempfile.TemporaryDirectory() as root:
            Records(controls.records, Path(root)).restore()
            print(table(controls, Path(root)))
        return
    train(controls, options.out, options.workers)
    print(table(controls, options.out))


if __name__ == "__main__":
    main()
