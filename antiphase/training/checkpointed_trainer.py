"""The Hugging Face Trainer with examples in order and complete checkpoints.

`RunTrainer` (our runs) and `AdapterTrainer` (for users of the plain Trainer) build on it.
"""

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.utils.data import Sampler, SequentialSampler
from transformers import Trainer

from antiphase.pretrained.dex import learning_rate_factors
from antiphase.training import checkpoints


def collate(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Stack rows into a batch, without the ground truth that is for analysis."""
    return {name: torch.stack([row[name] for row in rows]) for name in ("input_ids", "labels")}


class CheckpointedTrainer(Trainer):
    """A Trainer whose checkpoints have a manifest and can hold only what is trained.

    Args:
        trained_only: save the parameters that are trained instead of the complete model.
        **kwargs: the Trainer's; `data_collator` is `collate` unless given.
    """

    def __init__(self, *, trained_only: bool, **kwargs: Any) -> None:
        self.trained_only = trained_only
        super().__init__(**{"data_collator": collate, **kwargs})

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:
        """Take examples in the order of their indices: the dataset itself is the shuffle."""
        return SequentialSampler(self.train_dataset)

    def create_optimizer(self, model: Any = None) -> Any:
        """Return the Trainer's optimiser; lam and W_D of DEX have own groups if their rates do."""
        created = self.optimizer is None
        optimizer = super().create_optimizer(model)
        factors = learning_rate_factors(self.model) if created else {}
        for parameter, factor in factors.items():
            group = next(
                g for g in optimizer.param_groups if any(p is parameter for p in g["params"])
            )
            group["params"] = [p for p in group["params"] if p is not parameter]
            own = {**group, "params": [parameter], "lr": factor * group["lr"]}
            optimizer.add_param_group(own)
        return optimizer

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        if self.trained_only:
            checkpoints.save_trained(self.model, Path(output_dir or self.args.output_dir))
        else:
            super()._save(output_dir, state_dict)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        if self.trained_only:
            checkpoints.load_trained(model or self.model, Path(resume_from_checkpoint))
        else:
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        root = Path(self.args.output_dir)
        root.mkdir(parents=True, exist_ok=True)
        checkpoints.require_space(root, self._checkpoint_bytes())
        try:
            super()._save_checkpoint(model, trial)
        except (OSError, RuntimeError, SafetensorError) as error:  # as the disk's writers differ
            raise checkpoints.CheckpointError(
                f"{root}: the checkpoint of step {self.state.global_step} could not be written "
                f"({error}); free disk space and resume the run (the last complete one is kept)"
            ) from error
        self.accelerator.wait_for_everyone()  # each process writes files of its own
        if self.args.should_save:
            folder = root / f"checkpoint-{self.state.global_step}"
            if not self.trained_only and not (folder / "config.json").is_file():
                self.model.config.save_pretrained(folder)  # beside shards, the Trainer writes none
            self.add_to_checkpoint(folder)
            checkpoints.write_manifest(folder)

    def add_to_checkpoint(self, folder: Path) -> None:
        """Write files of a subclass, before the manifest completes the checkpoint."""

    def _checkpoint_bytes(self) -> int:
        """Return an upper bound: weights, two moments, 10% and a megabyte for the rest."""
        count = sum(
            p.numel() for p in self.model.parameters() if p.requires_grad or not self.trained_only
        )
        return int(count * 4 * 3 * 1.1) + (1 << 20)
