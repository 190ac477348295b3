"""A progress bar on the terminal: steps done, time left, latest loss, score and speed."""

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from antiphase.training.criterion import CriterionTracker

SHOWN = {
    "loss": "loss",
    "held-out loss": "held_out_loss",
    "accuracy": "held_out_accuracy",
    "tokens/s": "tokens_per_second",
}


class Progress(TrainerCallback):
    """A bar with loss, accuracy, speed and time left."""

    def __init__(self, title: str, criterion: CriterionTracker) -> None:
        self.title, self.criterion = title, criterion
        self._latest: dict[str, Any] = {}
        self.bar = Bar(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[now]}"),
            console=Console(stderr=True),  # stdout is for results
        )

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Show the bar, at the step from which the run starts or resumes."""
        self.bar.start()
        self.line = self.bar.add_task(
            self.title, total=self.criterion.end, completed=state.global_step, now=""
        )

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Advance the bar."""
        self.bar.update(self.line, completed=state.global_step, total=self.criterion.end)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Show the latest loss and scores."""
        self._latest |= logs or {}
        shown = [
            f"{name} {self._latest[key]:.4g}" for name, key in SHOWN.items() if key in self._latest
        ]
        self.bar.update(self.line, now=", ".join(shown))

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Leave the last line on the terminal."""
        self.stop()

    def stop(self) -> None:
        """Stop the bar, if it was shown; without a terminal, every stop prints an empty line."""
        if self.bar.live.is_started:
            self.bar.stop()
