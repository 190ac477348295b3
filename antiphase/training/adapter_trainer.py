"""The Hugging Face Trainer for a pretrained model of which a part is trained."""

import math
from typing import Any

from torch import Tensor

from antiphase.pretrained.dex import StepCounter
from antiphase.training.checkpointed_trainer import CheckpointedTrainer


class AdapterTrainer(CheckpointedTrainer):
    """A Trainer that counts DEX's steps, and whose checkpoints hold only what is trained.

    Give it the inner model: `AdapterTrainer(model=unchained.base_model, ...)`. Examples come in the
    order of their indices. Everything else is the Trainer's.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(trained_only=True, **kwargs)
        self.add_callback(StepCounter())

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return the loss; raise if it is not finite."""
        loss = super().training_step(*args, **kwargs)
        if not math.isfinite(float(loss)):
            raise ValueError(
                f"step {self.state.global_step + 1}: the loss is {float(loss)}; a smaller lr may "
                "help"
            )
        return loss
