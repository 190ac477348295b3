"""What the Trainer and our callbacks cost: a run beside a bare loop over the same batches."""

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from antiphase.benchmarks import measure
from antiphase.models import AntiphaseForCausalLM
from antiphase.training.recipe import Recipe
from antiphase.training.run import dataset, model_config
from antiphase.training.trainer import RunTrainer, arguments, collate
from antiphase.training.watch import Metrics

BARE = "bare loop"
RUN = "antiphase train"
BATCHES = "making the batches"


@dataclass(frozen=True)
class Cost:
    """Tokens a second of each way, and the ratio of a run's time to the bare loop's."""

    tokens_per_second: dict[str, float]
    wall: measure.Ratio
    cpu: measure.Ratio
    batches: measure.Ratio  # share of the bare loop's time, CPU


class _Clock(TrainerCallback):
    """Time the steps after the first, which also sets things up."""

    def __init__(self) -> None:
        self.start = self.end = (0.0, 0.0)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Look at the clocks."""
        now = (time.perf_counter(), time.process_time())
        if state.global_step == 1:
            self.start = now
        self.end = now


def run(recipe: Recipe, steps: int, rounds: int, tick: Callable[[], None]) -> Cost:
    """Return what `steps` steps cost each way, interleaved, median of rounds."""
    recipe = recipe.changed(steps=steps + 1, log_every=10, checkpoint_every=10 * steps + 10)
    samples: dict[str, list[measure.Sample]] = {BARE: [], RUN: [], BATCHES: []}
    for number in range(rounds + 1):
        for name, work in ((BARE, _bare), (RUN, _trainer), (BATCHES, _batches)):
            sample = work(recipe)
            if number:  # the first round warms up
                samples[name].append(sample)
        tick()
    data = dataset(recipe, "train", 1)
    tokens = steps * recipe.batch_size * data.length
    return Cost(
        {name: tokens / measure.seconds(samples[name], "wall") for name in (BARE, RUN)},
        measure.ratio(samples[RUN], samples[BARE], "wall"),
        measure.ratio(samples[RUN], samples[BARE], "cpu"),
        measure.ratio(samples[BATCHES], samples[BARE], "cpu"),
    )


def _bare(recipe: Recipe) -> measure.Sample:
    torch.manual_seed(recipe.seed)
    data = dataset(recipe, "train", recipe.steps * recipe.batch_size)
    model = AntiphaseForCausalLM(model_config(recipe, data)).train()
    betas = (recipe.beta1, recipe.beta2)
    optimiser = torch.optim.AdamW(
        model.parameter_groups(recipe.weight_decay), lr=recipe.lr, betas=betas
    )

    def step(number: int) -> None:
        first = number * recipe.batch_size
        batch = collate(data.examples(range(first, first + recipe.batch_size)))
        loss = model(**batch, use_cache=False).loss
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        optimiser.step()

    def steps() -> None:
        for number in range(1, recipe.steps):
            step(number)

    step(0)
    return measure.time_once(steps)


def _trainer(recipe: Recipe) -> measure.Sample:
    torch.manual_seed(recipe.seed)
    data = dataset(recipe, "train", recipe.steps * recipe.batch_size)
    model = AntiphaseForCausalLM(model_config(recipe, data))
    clock = _Clock()
    with tempfile.TemporaryDirectory() as folder:
        settings = arguments(recipe, Path(folder), 1)
        settings.save_strategy = "no"
        trainer = RunTrainer(recipe, model=model, args=settings, train_dataset=data)
        quiet = recipe.changed(evaluate_every=10 * recipe.steps)
        tokens = recipe.batch_size * data.length
        trainer.add_callback(Metrics(quiet, Path(folder), tokens, lambda net: {}))
        trainer.add_callback(clock)
        trainer.train()
    return measure.Sample(*(b - a for a, b in zip(clock.start, clock.end, strict=True)))


def _batches(recipe: Recipe) -> measure.Sample:
    data = dataset(recipe, "train", recipe.steps * recipe.batch_size)
    size = recipe.batch_size
    return measure.time_once(
        lambda: [
            collate(data.examples(range(i * size, i * size + size))) for i in range(1, recipe.steps)
        ]
    )
