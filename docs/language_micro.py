"""The runs behind docs/results/language-micro: a rate per arm on a short budget, then three seeds.

    python docs/language_micro.py --out runs/language-micro

Every arm is trained for a fifth of the budget at three learning rates on a seed of its own; the one
with the lowest held-out loss is taken for three runs of the recipe `language-micro` (5M tokens).
The long runs are in bf16 (autocast; weights in fp32), for time; the short run with the chosen rate
is repeated in bf16 to show what that changes.

Results are kept beside the page (`results.jsonl`, one line per finished run), so that the search
can be continued on another machine: what is there is not run again. The same command without
anything left to run prints the tables and draws the picture.
"""

import argparse
import json
import multiprocessing
import os
from pathlib import Path
from typing import Any, NamedTuple

from antiphase.analysis.palette import COLOURS, MATPLOTLIB_MARKERS
from antiphase.analysis.statistics import student_t
from antiphase.cpu import cpu_name
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
DEFAULT_START = [arm for arm in ARMS if ARMS[arm][1] == "scaled"]


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


def losses(runs: list[Run], out: Path) -> list[float]:
    """Return the held-out losses of the runs; those without a result are trained first."""
    todo = [(run, out) for run in runs if run not in stored()]
    if todo:
        cores = len(os.sched_getaffinity(0))
        with multiprocessing.get_context("spawn").Pool(min(cores, len(todo))) as pool:
            for result in pool.imap_unordered(perform, todo):
                with RESULTS.open("a") as file:
                    file.write(json.dumps(result) + "\n")
                print({k: v for k, v in result.items() if k != "curve"}, flush=True)
    results = stored()
    return [results[run]["loss"] for run in runs]


def main() -> None:
    """Run what is missing, print the tables, draw the picture."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("runs/language-micro"))
    out = parser.parse_args().out
    tuning = [Run("tuning", arm, lr, TUNING_SEED) for arm in ARMS for lr in RATES]
    tuned = dict(zip(tuning, losses(tuning, out), strict=True))
    rates = {arm: min((r for r in tuned if r.arm == arm), key=tuned.__getitem__).lr for arm in ARMS}
    checks = [Run("bf16", arm, rates[arm], TUNING_SEED) for arm in DEFAULT_START]
    in_bf16 = dict(zip(DEFAULT_START, losses(checks, out), strict=True))
    other_start = [arm for arm in ARMS if arm not in DEFAULT_START]
    final = [
        Run("final", arm, rates[arm], seed)
        for arms in (DEFAULT_START, other_start)
        for seed in SEEDS
        for arm in arms
    ]
    trained = dict(zip(final, losses(final, out), strict=True))

    print(
        f"\n| {SHORT_STEPS} steps, seed {TUNING_SEED} | " + " | ".join(f"{r:g}" for r in RATES),
        end="",
    )
    print(" | chosen | chosen, in bf16 |\n" + "|---" * (len(RATES) + 3) + "|")
    for arm in ARMS:
        row = " | ".join(f"{tuned[Run('tuning', arm, lr, TUNING_SEED)]:.3f}" for lr in RATES)
        print(
            f"| {arm} | {row} | {rates[arm]:g} | "
            + (f"{in_bf16[arm]:.3f}" if arm in in_bf16 else "")
            + " |"
        )

    by_arm = {arm: [trained[Run("final", arm, rates[arm], seed)] for seed in SEEDS] for arm in ARMS}
    print("\n| 610 steps | by seed | mean [95%] | minus standard of the same start, paired [95%] |")
    print("|---|---|---|---|")
    for arm, values in by_arm.items():
        base = by_arm["standard" + arm.removeprefix(ARMS[arm][0])]
        paired = student_t([a - b for a, b in zip(values, base, strict=True)])
        cells = [", ".join(f"{v:.3f}" for v in values), interval(student_t(values))]
        print(f"| {arm} | {' | '.join(cells)} | {interval(paired) if base is not values else ''} |")
    draw(by_arm)


def interval(value: Any) -> str:
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


if __name__ == "__main__":
    main()
