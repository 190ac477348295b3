"""The runs behind docs/results/language-micro: a rate per arm on a short budget, then three seeds.

    python docs/language_micro.py --out runs/language-micro
    antiphase compare runs/language-micro/final/*

Every arm is trained for a fifth of the budget at three learning rates on a seed of its own; the one
with the lowest held-out loss is taken for three runs of the recipe `language-micro` (5M tokens).
The long runs are in bf16 (autocast; weights in fp32), for time; the short run with the chosen rate
is repeated in bf16 to show what that changes. Runs are resumed, and finished ones are not repeated.
"""

import argparse
import multiprocessing
import os
from pathlib import Path

from antiphase.training import Recipe, load_recipe, resume, train
from antiphase.training.callbacks import read_metrics
from antiphase.training.run import finished

RATES = (2e-3, 4e-3, 8e-3)
SHORT_STEPS, TUNING_SEED, SEEDS = 122, 900, (0, 1, 2)
ARMS = {  # mechanism and start
    **{name: (name, "scaled") for name in ("standard", "diff_v1", "diff_v2", "low_rank_noise")},
    **{f"{name}, published": (name, "published") for name in ("standard", "diff_v1", "diff_v2")},
}
Job = tuple[Recipe, Path]


def recipe_of(arm: str, lr: float, seed: int, **changes: object) -> Recipe:
    """Return the recipe of an arm."""
    attention, start = ARMS[arm]
    return load_recipe("language-micro").changed(
        attention=attention,
        lr=lr,
        seed=seed,
        threads=1,
        model={"initialisation": start},
        **changes,
    )


def folder_of(out: Path, stage: str, name: str) -> Path:
    """Return the folder of a run."""
    return out / stage / name.replace(", ", "-")


def perform(job: Job) -> str:
    """Train, resume, or do nothing if the run is finished."""
    recipe, folder = job
    if (folder / "recipe.yaml").is_file():
        resume(folder, quiet=True)
    else:
        train(recipe, folder, force=True, quiet=True)
    return f"{folder}: held-out loss {held_out_loss(folder):.4f}"


def held_out_loss(folder: Path) -> float:
    """Return the last held-out loss of a run."""
    lines = [line for line in read_metrics(folder) if "held_out_loss" in line]
    return float(lines[-1]["held_out_loss"])


def perform_all(jobs: list[Job]) -> None:
    """Perform the jobs that are not finished, one thread each on all cores."""
    todo = [job for job in jobs if not finished(job[1])]
    with multiprocessing.get_context("spawn").Pool(len(os.sched_getaffinity(0))) as pool:
        for line in pool.imap_unordered(perform, todo):
            print(line, flush=True)


def main() -> None:
    """Tune, train, print the chosen rates."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("runs/language-micro"))
    out = parser.parse_args().out
    short = {
        (arm, lr): (
            recipe_of(arm, lr, TUNING_SEED, steps=SHORT_STEPS),
            folder_of(out, "tuning", f"{arm}-lr-{lr:g}"),
        )
        for arm in ARMS
        for lr in RATES
    }
    perform_all(list(short.values()))
    chosen = {arm: min(RATES, key=lambda lr: held_out_loss(short[arm, lr][1])) for arm in ARMS}
    default_start = [arm for arm in ARMS if ARMS[arm][1] == "scaled"]
    in_bf16 = {
        arm: (
            recipe_of(arm, chosen[arm], TUNING_SEED, steps=SHORT_STEPS, precision="bf16"),
            folder_of(out, "bf16", arm),
        )
        for arm in default_start
    }
    perform_all(list(in_bf16.values()))
    print(f"{'held-out loss after the short runs':36}" + "".join(f"{lr:>10g}" for lr in RATES))
    for arm in ARMS:
        losses = "".join(f"{held_out_loss(short[arm, lr][1]):10.4f}" for lr in RATES)
        check = f", in bf16 {held_out_loss(in_bf16[arm][1]):.4f}" if arm in in_bf16 else ""
        print(f"{arm:36}{losses}  chosen: {chosen[arm]:g}{check}")
    perform_all(
        [
            (
                recipe_of(arm, chosen[arm], seed, precision="bf16"),
                folder_of(out, "final", f"{arm}-{seed}"),
            )
            for arms in (default_start, [arm for arm in ARMS if arm not in default_start])
            for seed in SEEDS
            for arm in arms
        ]
    )


if __name__ == "__main__":
    main()
