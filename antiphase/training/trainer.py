"""The Hugging Face Trainer, with our optimiser groups, schedule, data order and whole checkpoints.

Everything else (Accelerate, FSDP, DeepSpeed, torchrun, reporting) is the Trainer's own.
"""

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Sampler, SequentialSampler
from transformers import Trainer, TrainingArguments

from antiphase.training import checkpoints
from antiphase.training.callbacks import Speed, lambdas
from antiphase.training.divergence import (
    Spikes,
    TroubleError,
    first_layer_not_finite,
    steepest_layer,
)
from antiphase.training.rank_penalty import noise_ranks
from antiphase.training.recipe import Recipe
from antiphase.training.schedule import lr_share

SPIKES = "spikes.json"  # in a checkpoint
PATIENCE = 10  # steps in a row that may be skipped


def collate(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return a batch as a model takes it, without the ground truth that is for analysis."""
    return {name: torch.stack([row[name] for row in rows]) for name in ("input_ids", "labels")}


def arguments(recipe: Recipe, folder: Path, processes: int) -> TrainingArguments:
    """Return the Trainer's arguments for a recipe."""
    share = recipe.batch_size // recipe.accumulate
    if share % processes:
        raise ValueError(
            f"batch_size: {share} texts at a time cannot be shared by {processes} processes; "
            "change batch_size or accumulate"
        )
    return TrainingArguments(
        output_dir=str(folder / "checkpoints"),
        max_steps=recipe.steps,
        per_device_train_batch_size=share // processes,
        gradient_accumulation_steps=recipe.accumulate,
        learning_rate=recipe.lr,
        adam_beta1=recipe.beta1,
        adam_beta2=recipe.beta2,
        weight_decay=recipe.weight_decay,
        max_grad_norm=recipe.clip,
        bf16=recipe.precision == "bf16",
        torch_compile=recipe.compile,
        gradient_checkpointing=recipe.checkpointing,
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


class RunTrainer(Trainer):
    """A Trainer that follows a recipe."""

    lr_scheduler: LambdaLR | None

    def __init__(self, recipe: Recipe, speed: Speed, **kwargs: Any) -> None:
        self.recipe, self.speed, self.spikes = recipe, speed, Spikes(recipe.spike)
        self._inputs: dict[str, Tensor] = {}  # of the step's first part with a loss not finite
        self._loss = 0.0  # and that loss
        self._skipped = 0  # steps in a row
        self._broken = False  # whether the mean of the losses since the last line is none
        super().__init__(**kwargs, data_collator=collate)
        self.can_return_loss = True

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:
        """Take examples in the order of their numbers: the dataset itself is the shuffle."""
        return SequentialSampler(self.train_dataset)

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """Return the parameters that decay, as the model says."""
        decayed = {id(p) for p in self.model.parameter_groups(1.0)[0]["params"]}
        return [name for name, p in model.named_parameters() if id(p) in decayed]

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> LambdaLR:
        """Return the recipe's schedule."""
        if self.lr_scheduler is None:
            self.lr_scheduler = LambdaLR(
                optimizer or self.optimizer, lambda step: lr_share(step, self.recipe)
            )
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def log(self, logs: dict[str, Any], start_time: float | None = None) -> None:
        """Tell everyone who listens the lambdas and the speed beside the loss."""
        if "loss" in logs:
            logs = logs | lambdas(self.model) | self.speed.since(self.state.global_step)
            if self._broken:
                del logs["loss"]
                self._broken = False
        super().log(logs, start_time)

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return the loss to be summed; one that is not finite would spoil the sum for good."""
        loss = super().training_step(*args, **kwargs)
        if torch.isfinite(loss):
            return loss
        self._broken = True
        return torch.zeros_like(loss)

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Tensor], *args: Any, **kwargs: Any
    ) -> Tensor:
        """Return the loss; one that is not finite makes the gradient of every process NaN."""
        if self.recipe.rank_penalty:
            with noise_ranks(self.model) as ranks:
                loss = super().compute_loss(model, inputs, *args, **kwargs)
            share = self.args.gradient_accumulation_steps
            loss = loss + self.recipe.rank_penalty * torch.stack(ranks).mean() / share
        else:
            loss = super().compute_loss(model, inputs, *args, **kwargs)
        if torch.isfinite(loss):
            return loss
        if math.isfinite(self._loss):
            self._inputs, self._loss = inputs, loss.item()
        return loss * math.nan

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> float | None:
        """Look at the norm before clipping, once a step, in every process alike."""
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)
        if norm is None:
            return None
        norm, step = float(norm), self.state.global_step + 1
        if not math.isfinite(norm):
            what = f"the gradient's norm is {norm}"
            layer = steepest_layer(self.model)
            if not math.isfinite(self._loss):
                what = f"the loss is {self._loss}"
                if not self.is_fsdp_enabled:  # there, all processes would have to look together
                    layer = first_layer_not_finite(self.model, self._inputs)
            self._inputs, self._loss = {}, 0.0
            self.trouble(TroubleError(what, step, layer, self.examples_of(step)))
        elif spike := self.spikes.see(norm):
            layer = steepest_layer(self.model)
            self.trouble(TroubleError(spike, step, layer, self.examples_of(step)))
        else:
            self._skipped = 0
        return norm

    def trouble(self, trouble: TroubleError) -> None:
        """Stop; or drop the whole step's gradients, so that its weights stay."""
        self._skipped += 1
        if self.recipe.on_trouble == "stop":
            raise trouble
        if self._skipped > PATIENCE:
            trouble.what = f"more than {PATIENCE} steps in a row were skipped; {trouble.what}"
            raise trouble
        self.model.zero_grad(set_to_none=True)
        self.log({"skipped": 1.0, "at_step": trouble.step, "why": str(trouble)})

    def examples_of(self, step: int) -> range:
        """Return the numbers of a step's examples; steps count from 1."""
        return range((step - 1) * self.recipe.batch_size, step * self.recipe.batch_size)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        with self.speed.pause():
            self._save_whole(model, trial)

    def _save_whole(self, model: nn.Module, trial: Any) -> None:
        root = Path(self.args.output_dir)
        root.mkdir(parents=True, exist_ok=True)
        # weights, two moments, and a little for the rest
        numbers = sum(p.numel() for p in self.model.parameters())
        checkpoints.require_space(root, int(numbers * 4 * 3 * 1.1) + (1 << 20))
        try:
            super()._save_checkpoint(model, trial)
        except (OSError, RuntimeError, SafetensorError) as error:  # as the disk's writers differ
            raise checkpoints.CheckpointError(
                f"{root}: the checkpoint of step {self.state.global_step} could not be written "
                f"({error}); make room and go on with --resume (the last whole one is kept)"
            ) from error
        self.accelerator.wait_for_everyone()  # each process writes files of its own
        if self.args.should_save:
            folder = root / f"checkpoint-{self.state.global_step}"
            (folder / SPIKES).write_text(json.dumps([self.spikes.mean, self._skipped]))
            checkpoints.seal(folder)

    def go_on_from(self, checkpoint: Path) -> None:
        """Train on from a checkpoint."""
        self.spikes.mean, self._skipped = json.loads((checkpoint / SPIKES).read_text())
        self.train(resume_from_checkpoint=str(checkpoint))
