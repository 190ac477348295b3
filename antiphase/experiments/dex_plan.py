"""What the study of DEX trains and measures (test 14), and what that costs on this machine."""

import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from antiphase.analysis.before_after import BeforeAfterOptions
from antiphase.experiments.e14_dex import ANNEAL, ARMS, BENCHMARKS, HELD, STUDY_ID, DexArm
from antiphase.experiments.step_time import step_seconds
from antiphase.experiments.train_all import duration
from antiphase.experiments.unchain import unchain_settings
from antiphase.pretrained.methods import METHODS
from antiphase.training import Recipe, load_recipe
from antiphase.training.components import Components

SEEDS = tuple(range(700, 705))  # of data order, W_D and random heads; no other study has them
TUNING_SEED = 790
MIN_STEPS = 3 * ANNEAL

TOKENS_PER_ITEM = {"needle": 550, "squad2": 600, "lambada": 200, "hellaswag": 400}
"""About how many tokens a model reads or writes per item of a benchmark, for estimates of time."""


@dataclass(frozen=True)
class DexPlan:
    """What all arms share, and how their rates are chosen.

    Attributes:
        recipe: of every run, except for method, learning rate and seed.
        options: what is measured before and after.
        arms: that are trained.
        rates: learning rates; of every arm the three in the middle are tried, and the neighbours of
            the best one while it lies at the edge of what was tried.
        extensions: how often neighbours are tried.
    """

    recipe: Recipe
    options: BeforeAfterOptions
    arms: tuple[DexArm, ...] = ARMS
    rates: tuple[float, ...] = (5e-5, 1e-4, 2e-4, 4e-4, 8e-4, 1.6e-3, 3.2e-3)
    extensions: int = 2

    @property
    def first_rates(self) -> tuple[float, ...]:
        """Return the three rates that every arm is tried at."""
        middle = len(self.rates) // 2
        return self.rates[middle - 1 : middle + 2]

    def recipe_of(self, arm: DexArm, lr: float, seed: int) -> Recipe:
        """Return the recipe of a run; DEX's options that the arm leaves open are the plan's."""
        kind_of_dex = METHODS[arm.method].Options is METHODS["dex"].Options
        shared = self.recipe.method_options if kind_of_dex else {}
        options = {**shared, **arm.options}
        return self.recipe.changed(method=arm.method, method_options=options, lr=lr, seed=seed)

    def design(self) -> dict[str, Any]:
        """Return what is trained and measured, for the lock."""
        return {
            "recipe": self.recipe.as_dict(),
            "evaluation": asdict(self.options),
            "arms": {arm.name: asdict(arm) for arm in self.arms},
            "tuning": {
                "rates": list(self.rates),
                "extensions": self.extensions,
                "seed": TUNING_SEED,
            },
        }


def trial_plan(
    settings: list[str], *, start: str, steps: int | None = None, text: list[str] | None = None
) -> DexPlan:
    """Return the plan of the study on a model, with changes.

    Args:
        settings: `name=value` texts, as `unchain_settings` takes them.
        start: the pretrained model.
        steps: of a run; default 300.
        text: sources to train on; default: English prose.

    Raises:
        ValueError: a setting is invalid, or would make the study another one.
    """
    shared = load_recipe("unchain").changed(
        batch_size=2, evaluate_every=100, evaluate_examples=32, threads=1, precision="bf16"
    )
    evaluation = {
        "questions": 16,
        "benchmarks": [task for task, _ in BENCHMARKS.values()],
        "benchmark_items": 100,
        "benchmark_dtype": "bfloat16",
    }
    recipe, options = unchain_settings(
        settings,
        recipe=shared,
        evaluation=evaluation,
        text=["prose"] if text is None else text,
        start=start,
        steps=MIN_STEPS if steps is None else steps,
    )
    if recipe.steps < MIN_STEPS:
        raise ValueError(
            f"steps: got {recipe.steps}, expected at least {MIN_STEPS}: annealing takes {ANNEAL} "
            "of them; leave out --steps"
        )
    chosen = {option for arm in ARMS for option in arm.options} & {*recipe.method_options}
    if chosen:
        raise ValueError(
            f"method_options.{min(chosen)}: the arms of --controls differ in it; leave it out"
        )
    return DexPlan(recipe, options)


def cost_line(plan: DexPlan, seeds: int, workers: int) -> str:
    """Say how many runs and steps the study has, and how long it takes, by timing a step."""
    runs, tuning = len(plan.arms) * seeds, len(plan.arms) * len(plan.first_rates)
    steps = (runs + tuning) * plan.recipe.steps
    step, token = _timed(plan)
    recipe, length = plan.recipe, _length(plan)
    scored = recipe.evaluate_examples * length / recipe.evaluate_every  # tokens per step
    measuring = measured_tokens(plan) * token
    seconds = (steps * (step + scored * token) + (runs + 1) * measuring) / workers
    return (
        f"study {STUDY_ID!r}: {len(plan.arms)} arms x {seeds} seeds = {runs} runs of "
        f"{recipe.steps} steps, and {tuning} to choose rates (more where the best is at the edge): "
        f"{steps:,} steps of {recipe.batch_size * length} tokens. "
        f"About {duration(seconds)} on {workers} cores if none is done yet: {step:.2g} s a step, "
        f"{duration(measuring)} to measure a model"
    )


def measured_tokens(plan: DexPlan) -> int:
    """Return about how many tokens a model reads when it is measured."""
    options = plan.options
    benchmarks = sum(TOKENS_PER_ITEM.get(task, 500) for task in options.benchmarks)
    held_out = 2 * options.sequences * _length(plan)  # the loss, then the operation
    questions = options.questions * options.question_length
    return held_out + questions + options.benchmark_items * benchmarks


def _length(plan: DexPlan) -> int:
    return int(plan.recipe.task_options["length"])


def _timed(plan: DexPlan) -> tuple[float, float]:
    """Return the CPU seconds of a training step of DEX, and of a forward pass per token."""
    recipe = plan.recipe_of(HELD, plan.first_rates[0], TUNING_SEED)
    threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as folder, torch.random.fork_rng():
        built = Components.build(recipe, Path(folder), 1)
    torch.set_num_threads(threads)
    batch = torch.stack([built.data[i]["input_ids"] for i in range(recipe.batch_size)])
    step, read = step_seconds(built.tuned.model, batch, recipe.precision)
    return step, read / batch.numel()
