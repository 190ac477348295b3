"""Ctrl-C, or a cluster that takes its machine back: the run saves itself and stops."""

import os
import signal
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StoppedError(Exception):
    """A run was asked to stop, and did so with a checkpoint."""


class Stop(TrainerCallback):
    """On the first signal, save and stop at the next step that is logged; a second one kills.

    Only there, so that a resumed run logs the same means as one that was never stopped.
    """

    def __init__(self, log_every: int) -> None:
        self.log_every = log_every
        self.asked = False
        self._before: dict[int, Any] = {}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Listen."""
        self._before = {number: signal.signal(number, self._ask) for number in SIGNALS}

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Stop if asked to."""
        if self.asked and state.global_step % self.log_every == 0:
            control.should_save = control.should_training_stop = True

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Listen no more."""
        self.release()

    def release(self) -> None:
        """Give the signals back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _ask(self, number: int, frame: Any) -> None:
        self.release()
        self.asked = True
        text = f"\nantiphase: saving at the next multiple of {self.log_every} steps\n"
        os.write(2, text.encode())  # safe inside a signal handler
