"""Interruption by SIGINT (Ctrl-C) or SIGTERM: the run writes a checkpoint and stops."""

import os
import signal
from dataclasses import dataclass
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass
class StoppedError(Exception):
    """A run was interrupted, and stopped with a checkpoint."""

    step: int
    steps: int
    advice: str  # how to resume

    def __str__(self) -> str:
        return f"stopped at step {self.step} of {self.steps}; {self.advice}"


class StopOnSignal(TrainerCallback):
    """On the first signal, save and stop at the next logged step; a second signal kills.

    Only at a logged step, so that a resumed run logs the same means as an uninterrupted one.
    """

    def __init__(self, log_every: int) -> None:
        self.log_every = log_every
        self.requested = False
        self._previous: dict[int, Any] = {}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Install the signal handlers."""
        self._previous = {number: signal.signal(number, self._request) for number in SIGNALS}

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Stop if a signal has requested it."""
        if self.requested and state.global_step % self.log_every == 0:
            control.should_save = control.should_training_stop = True

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Restore the previous handlers."""
        self.release()

    def release(self) -> None:
        """Restore the signal handlers that were there before."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}

    def _request(self, number: int, frame: Any) -> None:
        self.release()
        self.requested = True
        text = f"\nantiphase: saving at the next multiple of {self.log_every} steps\n"
        os.write(2, text.encode())  # safe inside a signal handler
