"""Controls of the studies of nano models on text: a gap, and its cheapest explanations.

    python docs/ladder_controls.py                          # trains and measures what is missing
    python docs/ladder_controls.py --tables                 # prints the table of what is kept
    python docs/ladder_controls.py --of nano-short-tuning   # those of the withdrawn study

- `nano`: short runs chose the branch scale of standard attention among settings that had hardly
  begun to attend; is another one better after the full length? Does V1 have too few heads at this
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
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.console import Console

from antiphase.analysis.statistics import Interval
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
from antiphase.experiments.measured_values import measured_values
from antiphase.experiments.plans import LADDER_NANO
from antiphase.experiments.records import Records
from antiphase.experiments.results import load_study
from antiphase.experiments.text_measurements import held_out_loss
from antiphase.experiments.train_all import train_all
from antiphase.experiments.trained_models import TrainedModel
from antiphase.markdown import markdown_table

LADDER = Path(__file__).parent / "results" / "ladder"
MEASURED = "control: held-out loss"
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
        seeds: how many of the study's it has.
    """

    name: str
    arm: Arm
    settings: Settings
    versus: tuple[str, ...]
    seeds: int = 2

    def run(self, seed: int) -> TrainingRun:
        """Return its run of a seed."""
        return TrainingRun(
            arm_recipe(LADDER_NANO.recipe, self.arm, self.settings).changed(seed=seed)
        )


def _at_rate(lr: float, arm: Arm, branch_scale: float = 1.0, seeds: int = 2) -> Control:
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
            _at_rate(8e-3, STANDARD, 2.0, seeds=5),
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


def loss(run: TrainingRun, root: Path) -> float:
    """Return the held-out loss of a finished run, measured once."""
    model = TrainedModel("control", run, run.folder(root))
    return float(measured_values(model.folder, MEASURED, lambda: held_out_loss(model)).mean())


def train(controls: Controls, root: Path, workers: int | None) -> None:
    """Train and measure what is missing."""
    torch.set_num_threads(1)
    records = Records(controls.records, root)
    records.restore()

    def measure(job: Job) -> None:
        assert isinstance(job, TrainingRun)
        loss(job, root)
        records.add(job.folder(root))

    runs = [c.run(seed) for c in controls.every for seed in controls.seeds[: c.seeds]]
    for key, fault in train_all(runs, root, Console(), LocalEngine(workers), measure).items():
        print(f"{key}: {fault}")


def losses_of_study(folder: Path) -> dict[str, dict[int, float]]:
    """Return the losses of the study's arms by seed, from the tables of tests 11 and 21."""
    study = load_study(folder)
    found: dict[str, dict[int, float]] = {}
    for number, column in ((11, LOSS), (21, "loss")):
        table = next(result for result in study.results if result.number == number).tables[0]
        for row in table.rows:
            cell = row[table.columns.index(column)]
            assert isinstance(cell, Interval)
            assert cell.by_seed is not None
            found[str(row[0])] = dict(zip(study.seeds, cell.by_seed, strict=True))
    return found


def table(controls: Controls, root: Path) -> str:
    """Return the losses of the controls that are kept, and differences to runs of the same seed."""
    losses = losses_of_study(controls.folder)
    for control in controls.every:
        runs = {seed: control.run(seed) for seed in controls.seeds}
        own = {seed: loss(run, root) for seed, run in runs.items() if run.finished(root)}
        losses[control.name] = own
    rows = []
    for control in controls.every:
        own = losses[control.name]
        values = ", ".join(f"{value:.3f}" for value in own.values())
        for versus in control.versus if own else ():
            gaps = ", ".join(
                f"{own[seed] - losses[versus][seed]:+.3f}" for seed in own if seed in losses[versus]
            )
            rows.append([control.name, ", ".join(map(str, own)), values, versus, gaps])
    return markdown_table(["control", "seeds", "loss", "minus", "difference"], rows)


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
