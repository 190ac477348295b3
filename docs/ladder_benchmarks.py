"""The models of the ladder on LAMBADA and essays, by bits per byte (`antiphase evaluate`).

    antiphase data benchmarks
    python docs/ladder_benchmarks.py --study ladder-nano --out runs/lab-ladder-nano
    python docs/ladder_benchmarks.py --study ladder-nano --tables

The first line is needed once. The second evaluates every finished run of the study whose weights
are in its folder, and keeps the numbers beside the study's records (`benchmarks.jsonl`, one line
per run), so that they can be continued on another machine. The tables follow.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch

from antiphase.analysis.statistics import student_t
from antiphase.evaluation.evaluate import EvaluationOptions, evaluate_named
from antiphase.evaluation.report import summarise
from antiphase.experiments.arms import STANDARD, Arm, Settings, TrainingRun, arm_recipe
from antiphase.experiments.lock import runs_of
from antiphase.experiments.plans import PLANS, Plan
from antiphase.experiments.registry import EXPERIMENTS
from antiphase.experiments.study_records import distinct_arms
from antiphase.markdown import markdown_table
from antiphase.training import Recipe, load_recipe

ROOT = Path(__file__).parents[1]
TASKS, LIMIT, BATCH = ["lambada", "essays_bpb"], 2000, 16
MEASURES = (("lambada", "bits per byte"), ("lambada", "acc"), ("essays_bpb", "bits per byte"))


def arms_of(plan: Plan) -> list[Arm]:
    """Return the arms of a study."""
    return distinct_arms(EXPERIMENTS[number].load() for number in plan.tests)


def arm_of(plan: Plan, recipe: Recipe) -> Arm | None:
    """Return the arm that a recipe is of, whatever tuning chose; None if it is of none."""
    settings = Settings(recipe.lr, recipe.model.get("branch_scale", 1.0))
    own = recipe.as_dict()
    matches = (
        arm
        for arm in arms_of(plan)
        if arm_recipe(plan.recipe, arm, settings).changed(seed=recipe.seed).as_dict() == own
    )
    return next(matches, None)


def evaluated(folder: Path) -> dict[str, float]:
    """Evaluate the model of a run; return its measures."""
    options = EvaluationOptions(tasks=TASKS, limit=LIMIT, batch_size=BATCH)
    with tempfile.TemporaryDirectory() as out:
        found = summarise([evaluate_named(str(folder), options, Path(out), quiet=True)], options)
    return {
        f"{task}, {measure}": found["tasks"][task]["measures"][measure]["models"][0]["value"]
        for task, measure in MEASURES
    }


def evaluate_all(plan: Plan, root: Path, kept: Path) -> None:
    """Evaluate the runs that are finished, have weights and are not kept yet."""
    done = {line["key"] for line in read(kept)}
    for folder in runs_of(plan.seeds, root):
        if folder.name in done or not (folder / "model" / "model.safetensors").is_file():
            continue
        recipe = load_recipe(str(folder / "recipe.yaml"))
        arm = arm_of(plan, recipe)
        if arm is None or TrainingRun(recipe).key != folder.name:
            continue
        line = {"key": folder.name, "arm": arm.name, "seed": recipe.seed, **evaluated(folder)}
        print(json.dumps(line), flush=True)
        with kept.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def read(kept: Path) -> list[dict[str, Any]]:
    """Return the lines that are kept."""
    text = kept.read_text(encoding="utf-8") if kept.is_file() else ""
    return [json.loads(line) for line in text.splitlines()]


def table(plan: Plan, kept: Path) -> str:
    """Return mean and interval over seeds of every arm, and the paired difference to standard."""
    values: dict[str, dict[int, dict[str, float]]] = {}
    for line in read(kept):
        values.setdefault(line["arm"], {})[line["seed"]] = line
    names = [f"{task}, {measure}" for task, measure in MEASURES]
    rows = []
    for arm in (arm for arm in arms_of(plan) if arm.name in values):
        own, standard = values[arm.name], values.get(STANDARD.name, {})
        cells = [arm.name, str(len(own))]
        for name in names:
            cells.append(str(student_t([line[name] for line in own.values()])))
            both = [seed for seed in own if seed in standard]
            paired = [own[seed][name] - standard[seed][name] for seed in both]
            cells.append("" if arm == STANDARD or not paired else str(student_t(paired)))
        rows.append(cells)
    columns = [column for name in names for column in (name, "minus standard")]
    return markdown_table(["arm", "seeds", *columns], rows)


def main() -> None:
    """Evaluate what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ladder = [name for name, plan in PLANS.items() if plan.on_text]
    parser.add_argument("--study", choices=ladder, default=ladder[0])
    parser.add_argument("--out", type=Path, help="folder of the study [runs/lab-STUDY]")
    parser.add_argument("--tables", action="store_true", help="print the table of what is kept")
    options = parser.parse_args()
    plan = PLANS[options.study]
    assert plan.kept is not None
    kept = ROOT / plan.kept / "benchmarks.jsonl"
    if not options.tables:
        torch.set_num_threads(1)
        folder = options.out or Path(f"runs/lab-{options.study}")
        evaluate_all(plan, folder / "trained", kept)
    print(table(plan, kept))


if __name__ == "__main__":
    main()
