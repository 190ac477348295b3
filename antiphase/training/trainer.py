"""The Trainer of our runs: optimiser groups, schedule, divergence policy and metrics of a recipe.

Everything else (Accelerate, FSDP, DeepSpeed, torchrun, reporting) is the Hugging Face Trainer's.
"""

import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Subset
from transformers import TrainingArguments

from antiphase.models import AntiphaseForCausalLM
from antiphase.training.callbacks import Speed, lambdas
from antiphase.training.checkpointed_trainer import CheckpointedTrainer
from antiphase.training.criterion import CriterionTracker
from antiphase.training.divergence import (
    DivergenceError,
    SpikeDetector,
    first_layer_not_finite,
    largest_gradient,
)
from antiphase.training.rank_penalty import noise_ranks
from antiphase.training.recipe import Recipe
from antiphase.training.schedule import lr_factor

SPIKES = "spikes.json"  # in a checkpoint
PATIENCE = 10  # consecutive steps that may be skipped


def arguments(recipe: Recipe, folder: Path, processes: int) -> TrainingArguments:
    """Return the Trainer's arguments for a recipe.

    Args:
        recipe: of the run.
        folder: of the run.
        processes: number of processes that train together.

    Raises:
        ValueError: the micro-batch cannot be divided among the processes.
    """
    micro_batch = recipe.batch_size // recipe.accumulate
    if micro_batch % processes:
        raise ValueError(
            f"batch_size: a micro-batch of {micro_batch} sequences cannot be divided among "
            f"{processes} processes; change batch_size or accumulate"
        )
    return TrainingArguments(
        output_dir=str(folder / "checkpoints"),
        max_steps=recipe.steps,
        per_device_train_batch_size=micro_batch // processes,
        gradient_accumulation_steps=recipe.accumulate,
        learning_rate=recipe.lr,
        adam_beta1=recipe.beta1,
        adam_beta2=recipe.beta2,
        weight_decay=recipe.weight_decay,
        max_grad_norm=recipe.clip,
        bf16=recipe.precision == "bf16",
        torch_compile=recipe.compile,
        gradient_checkpointing=recipe.checkpointing,
        gradient_checkpointing_kwargs={"use_reentrant": False},  # the form that compiles and shards
        logging_steps=recipe.log_every,
        logging_nan_inf_filter=False,
        save_steps=recipe.checkpoint_every,
        save_total_limit=recipe.keep,
        seed=recipe.seed,
        use_cpu=not torch.cuda.is_available(),
        dataloader_pin_memory=torch.cuda.is_available(),
        remove_unused_columns=False,
        average_tokens_across_devices=True,
        report_to=recipe.report or "none",
        disable_tqdm=True,
        log_level="error",
    )


class RunTrainer(CheckpointedTrainer):
    """A Trainer that follows a recipe.

    Args:
        recipe: of the run; with a `start`, checkpoints hold only what is trained.
        speed: measures tokens per second.
        **kwargs: the Trainer's.
    """

    lr_scheduler: LambdaLR | None
    train_dataset: Any

    def __init__(self, recipe: Recipe, speed: Speed, **kwargs: Any) -> None:
        self.recipe, self.speed, self.spikes = recipe, speed, SpikeDetector(recipe.spike)
        self.criterion = CriterionTracker(recipe)
        self._inputs: dict[str, Tensor] = {}  # of the step's first micro-batch without finite loss
        self._loss = 0.0  # and that loss
        self._skipped = 0  # consecutive steps
        self._mean_is_lost = False  # of the losses since the last log, as one was not finite
        super().__init__(trained_only=recipe.start is not None, **kwargs)
        self.can_return_loss = True

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """Return the parameters with weight decay: as our model says, or the Trainer's default."""
        if not isinstance(self.model, AntiphaseForCausalLM):
            return super().get_decay_parameter_names(model)
        decayed = {id(p) for p in self.model.parameter_groups(1.0)[0]["params"]}
        return [name for name, p in model.named_parameters() if id(p) in decayed]

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> LambdaLR:
        """Return the recipe's schedule."""
        if self.lr_scheduler is None:
            self.lr_scheduler = LambdaLR(
                optimizer or self.optimizer,
                lambda step: lr_factor(step, self.recipe, self.criterion.decay_from),
            )
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def log(self, logs: dict[str, Any], start_time: float | None = None) -> None:
        """Add lam per layer and the speed to a log of the loss, for all callbacks and reporters."""
        if "loss" in logs:
            logs = logs | lambdas(self.model) | self.speed.since(self.state.global_step)
            if self._mean_is_lost:
                del logs["loss"]
                self._mean_is_lost = False
        super().log(logs, start_time)

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return the loss for the running sum, which one that is not finite would spoil."""
        loss = super().training_step(*args, **kwargs)
        if torch.isfinite(loss):
            return loss
        self._mean_is_lost = True
        return torch.zeros_like(loss)

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Tensor], *args: Any, **kwargs: Any
    ) -> Tensor:
        """Return the loss; one that is not finite makes the gradient of every process NaN."""
        if self.recipe.rank_penalty:
            with noise_ranks(self.model) as ranks:
                loss = super().compute_loss(model, inputs, *args, **kwargs)
            parts = self.args.gradient_accumulation_steps
            loss = loss + self.recipe.rank_penalty * torch.stack(ranks).mean() / parts
        else:
            loss = super().compute_loss(model, inputs, *args, **kwargs)
        if torch.isfinite(loss):
            return loss
        if math.isfinite(self._loss):
            self._inputs, self._loss = inputs, loss.item()
        return loss * math.nan

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> float | None:
        """Check the norm before clipping, once per step, equally in every process."""
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)
        if norm is None:
            return None
        norm, step = float(norm), self.state.global_step + 1
        if not math.isfinite(norm):
            what = f"the gradient's norm is {norm}"
            layer = largest_gradient(self.model)
            if not math.isfinite(self._loss):
                what = f"the loss is {self._loss}"
                if not self.is_fsdp_enabled:  # there, all processes would have to run the model
                    layer = first_layer_not_finite(self.model, self._inputs)
            self._inputs, self._loss = {}, 0.0
            self.stop_or_skip(DivergenceError(what, step, layer, self.examples_of(step)))
        elif spike := self.spikes.check(norm):
            layer = largest_gradient(self.model)
            self.stop_or_skip(DivergenceError(spike, step, layer, self.examples_of(step)))
        else:
            self._skipped = 0
        return norm

    def stop_or_skip(self, divergence: DivergenceError) -> None:
        """Raise, or drop the gradients of the complete step so that the weights stay."""
        self._skipped += 1
        if self.recipe.on_divergence == "stop":
            raise divergence
        if self._skipped > PATIENCE:
            divergence.what = f"more than {PATIENCE} steps in a row were skipped; {divergence.what}"
            raise divergence
        self.model.zero_grad(set_to_none=True)
        self.log({"skipped": 1.0, "at_step": divergence.step, "why": str(divergence)})

    def examples_of(self, step: int) -> range:
        """Return the indices of a step's examples; steps count from 1."""
        return range((step - 1) * self.recipe.batch_size, step * self.recipe.batch_size)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        with self.speed.pause():
            super()._save_checkpoint(model, trial)

    def add_to_checkpoint(self, folder: Path) -> None:
        """Keep what decides later steps: the mean gradient norm, and the criterion's state."""
        (folder / SPIKES).write_text(json.dumps([self.spikes.mean, self._skipped]))
        if self.recipe.criterion is not None:
            self.criterion.save_state(folder)

    def resume_from(self, checkpoint: Path) -> None:
        """Train on from a checkpoint, which may be that of the run's last step."""
        self.spikes.mean, self._skipped = json.loads((checkpoint / SPIKES).read_text())
        if self.recipe.criterion is not None:
            self.criterion.load_state(checkpoint)
            # no examples after an early end: the Trainer would take one more step from the last
            self.args.max_steps = self.criterion.end
            indices = range(self.criterion.end * self.recipe.batch_size)
            self.train_dataset = Subset(self.train_dataset, indices)
        self.train(resume_from_checkpoint=str(checkpoint))
