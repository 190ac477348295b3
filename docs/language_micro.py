"""The runs behind docs/results/language-micro: a rate per arm on a short budget, then three seeds.

    python docs/language_micro.py --out runs/language-micro

Every arm is trained for a fifth of the budget at three learning rates on a seed of its own; the one
with the lowest held-out loss is taken for three runs of the recipe `language-micro` (5M tokens).
The long runs are in bf16 (autocast; weights in fp32), for time; the short run with the chosen rate
is repeated in bf16 to show what that changes.

Results are kept beside the page (`results.jsonl`, one line per finished run), so that they
can be continued on another machine: what is there is not run again. The tables and the picture
follow at the end; `--tables` gives those of the arms that are done.
"""

import argparse
import json
import multiprocessing
import os
from pathlib import Path
from typing import Any, NamedTuple

from antiphase.analysis.palette import COLOURS, MATPLOTLIB_MARKERS
from antiphase.analysis.statistics import Interval, student_t
from antiphase.cpu import cpu_name
from antiphase.markdown import markdown_table
from antiphase.training import Recipe, load_recipe, resume, train
from antiphase.training.callbacks import read_metrics

PAGE = Path(__file__).parent / "results" / "language-micro"
RESULTS, PICTURE = PAGE / "results.jsonl", PAGE / "losses.png"

RATES = (2e-3, 4e-3, 8e-3)
SHORT_STEPS, TUNING_SEED, SEEDS = 122, 900, (0, 1, 2)
ARMS = {  # mechanism and start
    **{name: (name, "scaled") for name in ("standard", "diff_v1", "diff_v2", "low_rank_noise")},
    **{f"{name}, published": (name, "published") for name in ("standard", "diff_v1", "diff_v2")},
}


class Run(NamedTuple):
    """What tells one run from another."""

    stage: str
    arm: str
    lr: float
    seed: int

    def recipe(self) -> Recipe:
        """Return what is trained; only the tuning runs are in fp32."""
        attention, start = ARMS[self.arm]
        return load_recipe("language-micro").changed(
            attention=attention,
            lr=self.lr,
            seed=self.seed,
            threads=1,
            model={"initialisation": start},
            precision="fp32" if self.stage == "tuning" else "bf16",
            **({} if self.stage == "final" else {"steps": SHORT_STEPS}),
        )

    def folder(self, out: Path) -> Path:
        """Return the folder of the run."""
        return out / self.stage / f"{self.arm.replace(', ', '-')}-lr-{self.lr:g}-{self.seed}"


def perform(job: tuple[Run, Path]) -> dict[str, Any]:
    """Train or resume; return the result with its curve of held-out losses."""
    run, out = job
    folder = run.folder(out)
    if (folder / "recipe.yaml").is_file():
        resume(folder, quiet=True)
    else:
        train(run.recipe(), folder, force=True, quiet=True)
    curve = [
        (line["step"], round(line["held_out_loss"], 4))
        for line in read_metrics(folder)
        if "held_out_loss" in line
    ]
    return {**run._asdict(), "loss": curve[-1][1], "curve": curve, "processor": cpu_name()}


def stored() -> dict[Run, dict[str, Any]]:
    """Return the results of all finished runs."""
    lines = map(json.loads, RESULTS.read_text().splitlines()) if RESULTS.exists() else ()
    return {Run(*(line[field] for field in Run._fields)): line for line in lines}


def run_missing(runs: list[Run], out: Path) -> dict[Run, dict[str, Any]]:
    """Train the runs that have no stored result; return all results."""
    todo = [(run, out) for run in runs if run not in stored()]
    if todo:
        cores = len(os.sched_getaffinity(0))
        with multiprocessing.get_context("spawn").Pool(min(cores, len(todo))) as pool:
            for result in pool.imap_unordered(perform, todo):
                with RESULTS.open("a") as file:
                    file.write(json.dumps(result) + "\n")
                print({k: v for k, v in result.items() if k != "curve"}, flush=True)
    return stored()


def tuning_runs() -> list[Run]:
    """Return the short runs, three rates per arm."""
    return [Run("tuning", arm, lr, TUNING_SEED) for arm in ARMS for lr in RATES]


def chosen_rates(results: dict[Run, dict[str, Any]]) -> dict[str, float]:
    """Return the rate with the lowest loss of each arm."""
    runs = tuning_runs()
    return {
        arm: min((run for run in runs if run.arm == arm), key=lambda run: results[run]["loss"]).lr
        for arm in ARMS
    }


def final_runs(rates: dict[str, float]) -> list[Run]:
    """Return the long runs, those of the default start first."""
    return [
        Run("final", arm, rates[arm], seed)
        for start in ("scaled", "published")
        for seed in SEEDS
        for arm in ARMS
        if ARMS[arm][1] == start
    ]


def tables(results: dict[Run, dict[str, Any]]) -> str:
    """Return the two tables of the page, in Markdown."""
    rates = chosen_rates(results)
    head = [f"{SHORT_STEPS} steps, seed {TUNING_SEED}", *(f"lr {lr:g}" for lr in RATES)]
    rows = []
    for arm in ARMS:
        short = [results[Run("tuning", arm, lr, TUNING_SEED)]["loss"] for lr in RATES]
        check = results.get(Run("bf16", arm, rates[arm], TUNING_SEED))
        row = [arm, *(f"{loss:.3f}" for loss in short), f"{rates[arm]:g}"]
        rows.append([*row, f"{check['loss']:.3f}" if check else ""])
    tuning = markdown_table([*head, "chosen", "chosen, in bf16"], rows)

    by_arm = final_losses(results)
    head = ["610 steps", "by seed", "mean [95%]", "minus `standard`, same start, paired [95%]"]
    rows = []
    for arm, values in by_arm.items():
        base = by_arm.get("standard" + arm.removeprefix(ARMS[arm][0]), values)
        paired = student_t([a - b for a, b in zip(values, base, strict=True)])
        row = [arm, ", ".join(f"{v:.3f}" for v in values), interval(student_t(values))]
        rows.append([*row, "" if base is values else interval(paired)])
    return tuning + "\n\n" + markdown_table(head, rows)


def final_losses(results: dict[Run, dict[str, Any]]) -> dict[str, list[float]]:
    """Return the losses of the arms whose long runs are done, in the order of the seeds."""
    runs = final_runs(chosen_rates(results))
    by_arm = {arm: [run for run in runs if run.arm == arm] for arm in ARMS}
    return {
        arm: [results[run]["loss"] for run in runs]
        for arm, runs in by_arm.items()
        if all(run in results for run in runs)
    }


def interval(value: Interval) -> str:
    """Return a mean with its interval, in thousandths of a nat."""
    return f"{value.mean:.3f} [{value.low:.3f}, {value.high:.3f}]"


def draw(by_arm: dict[str, list[float]]) -> None:
    """Draw the losses by arm, one mark per seed."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 3), layout="constrained")
    for row, (arm, values) in enumerate(by_arm.items()):
        start = ARMS[arm][1] == "published"
        axes.plot(
            values, [row] * len(values), MATPLOTLIB_MARKERS[start], color=COLOURS[start], alpha=0.7
        )
        axes.plot([sum(values) / len(values)] * 2, [row - 0.3, row + 0.3], color=COLOURS[start])
    axes.set_yticks(range(len(by_arm)), list(by_arm))
    axes.invert_yaxis()
    axes.set_xlabel("held-out loss after 5M tokens, nats per token (bar: mean over three seeds)")
    figure.savefig(PICTURE, dpi=150)


def main() -> None:
    """Run what is missing, print the tables, draw the picture."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("runs/language-micro"))
    parser.add_argument("--tables", action="store_true", help="of what is stored; train nothing")
    options = parser.parse_args()
    results = stored() if options.tables else run_all(options.out)
    print(tables(results))
    draw(final_losses(results))


def run_all(out: Path) -> dict[Run, dict[str, Any]]:
    """Run what is missing: tuning, the check of bf16, the long runs."""
    rates = chosen_rates(run_missing(tuning_runs(), out))
    default = [arm for arm in ARMS if ARMS[arm][1] == "scaled"]
    run_missing([Run("bf16", arm, rates[arm], TUNING_SEED) for arm in default], out)
    return run_missing(final_runs(rates), out)


if __name__ == "__main__":
    main()
