"""The cost of the Trainer and our callbacks: steps of a run against steps of a bare loop."""

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PrinterCallback, TrainerCallback

from antiphase.benchmarks import timing
from antiphase.models import AntiphaseForCausalLM
from antiphase.tasks import Language, Task
from antiphase.training.callbacks import Metrics, Speed
from antiphase.training.checkpointed_trainer import collate
from antiphase.training.components import dataset, model_config
from antiphase.training.recipe import Recipe
from antiphase.training.trainer import RunTrainer, arguments

BARE = "bare loop"
RUN = "antiphase train"
BATCHES = "building the batches"


@dataclass(frozen=True)
class TrainingCost:
    """Tokens per second of each, and ratios to the bare loop, per step."""

    tokens_per_second: dict[str, float]
    wall: timing.Ratio
    cpu: timing.Ratio
    batches: timing.Ratio  # fraction of the bare loop's CPU time


class _BareLoop:
    """A minimal training loop, one step at a time."""

    def __init__(self, recipe: Recipe, data: Task | Language) -> None:
        torch.manual_seed(recipe.seed)
        self.data, self.size, self.clip = data, recipe.batch_size, recipe.clip
        self.model = AntiphaseForCausalLM(model_config(recipe, data)).train()
        self.optimiser = torch.optim.AdamW(
            self.model.parameter_groups(recipe.weight_decay),
            lr=recipe.lr,
            betas=(recipe.beta1, recipe.beta2),
            fused=True,  # as the Trainer's
        )

    def batch(self, number: int) -> dict[str, torch.Tensor]:
        first = number * self.size
        return collate(self.data.__getitems__(list(range(first, first + self.size))))

    def step(self, number: int) -> None:
        loss = self.model(**self.batch(number), use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimiser.step()
        self.optimiser.zero_grad()


class _Alternate(TrainerCallback):
    """After each step of the run, time the same step of the bare loop, then its batch alone."""

    def __init__(self, bare: _BareLoop, tick: Callable[[], None]) -> None:
        self.bare, self.tick = bare, tick
        self.samples: dict[str, list[timing.Sample]] = {BARE: [], RUN: [], BATCHES: []}
        self._since = (0.0, 0.0)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop the clock of the run, time the others, and restart it."""
        number = state.global_step - 1
        wall, cpu = time.perf_counter() - self._since[0], time.process_time() - self._since[1]
        bare = timing.time_once(lambda: self.bare.step(number))
        batch = timing.time_once(lambda: self.bare.batch(number))
        if number:  # the first step is a warm-up
            self.samples[RUN].append(timing.Sample(wall, cpu))
            self.samples[BARE].append(bare)
            self.samples[BATCHES].append(batch)
            self.tick()
        self._since = time.perf_counter(), time.process_time()


def run(recipe: Recipe, steps: int, tick: Callable[[], None]) -> TrainingCost:
    """Time steps of a run and of a bare loop, alternating.

    Args:
        recipe: What to train.
        steps: Number of measured steps.
        tick: Called after each measured step.

    Returns:
        The cost of the run, relative to the bare loop.
    """
    recipe = recipe.changed(steps=steps + 1, log_every=10, checkpoint_every=10)
    if recipe.threads is not None:
        torch.set_num_threads(recipe.threads)
    data = dataset(recipe, "train", recipe.steps * recipe.batch_size)
    tokens = recipe.batch_size * data.length
    alternate = _Alternate(_BareLoop(recipe, data), tick)
    with tempfile.TemporaryDirectory() as folder:
        settings = arguments(recipe, Path(folder), 1)
        settings.save_strategy = "no"
        torch.manual_seed(recipe.seed)
        speed = Speed(tokens)
        trainer = RunTrainer(
            recipe,
            speed,
            model=AntiphaseForCausalLM(model_config(recipe, data)),
            args=settings,
            train_dataset=data,
        )
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(Metrics(Path(folder), speed))
        trainer.add_callback(alternate)
        trainer.train()
    samples = alternate.samples
    return TrainingCost(
        {name: tokens / timing.seconds(samples[name], "wall") for name in (BARE, RUN)},
        timing.ratio(samples[RUN], samples[BARE], "wall"),
        timing.ratio(samples[RUN], samples[BARE], "cpu"),
        timing.ratio(samples[BATCHES], samples[BARE], "cpu"),
    )
