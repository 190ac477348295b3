"""The Hugging Face Trainer for a model of which a small part is trained."""

import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.data import Sampler, SequentialSampler
from transformers import Trainer, TrainerCallback

from antiphase.pretrained.dex import set_step
from antiphase.pretrained.structure import trainable
from antiphase.training import checkpoints
from antiphase.training.trainer import collate

SMALL = "trained.safetensors"


class CountSteps(TrainerCallback):
    """Tell lam(t) the time."""

    def on_step_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        """Set the optimiser steps that have been made."""
        set_step(model, state.global_step)

    def on_train_end(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        """Set them once more, for what comes after."""
        set_step(model, state.global_step)


class SmallPartTrainer(Trainer):
    """A Trainer that counts DEX's steps, and whose checkpoints hold what is trained.

    Give it the inner model: `SmallPartTrainer(model=unchained.base_model, ...)`. Texts come in the
    order of their numbers.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"data_collator": collate, **kwargs})
        self.add_callback(CountSteps())

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:
        return SequentialSampler(self.train_dataset)

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return the loss; stop where it is none."""
        loss = super().training_step(*args, **kwargs)
        if not math.isfinite(float(loss)):
            raise ValueError(
                f"step {self.state.global_step + 1}: the loss is {float(loss)}; a smaller lr may "
                "help"
            )
        return loss

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        folder = Path(output_dir or self.args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        parts = {name: p.detach().contiguous() for name, p in trainable(self.model).items()}
        save_file(parts, folder / SMALL)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        inner: nn.Module = model or self.model
        own = trainable(inner)
        with torch.no_grad():
            for name, t in load_file(Path(resume_from_checkpoint) / SMALL).items():
                own[name].copy_(t)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        checkpoints.seal(Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}")
