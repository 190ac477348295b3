"""What is written down while a run goes: metrics, lambdas, speed, held-out scores, maps."""

import contextlib
import json
import math
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from antiphase.attention.parts import Lambda
from antiphase.training.checkpoints import write_whole
from antiphase.training.recipe import Recipe

TIMED = ("tokens_per_second",)  # differ between runs that are otherwise the same
METRICS = "metrics.jsonl"


class Speed:
    """Tokens a second of training, what is done between its steps left out."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens  # of a step
        self._clock, self._step = time.perf_counter(), 0

    def start(self, step: int) -> None:
        """Count from here."""
        self._clock, self._step = time.perf_counter(), step

    def since(self, step: int) -> dict[str, float]:
        """Return the speed since the last time, and count from here."""
        steps, seconds = step - self._step, time.perf_counter() - self._clock
        self.start(step)
        return {"tokens_per_second": steps * self.tokens / seconds} if steps else {}

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Do not count what is done inside."""
        before = time.perf_counter()
        yield
        self._clock += time.perf_counter() - before


class Metrics(TrainerCallback):
    """Write every number that is logged to metrics.jsonl."""

    def __init__(self, folder: Path, speed: Speed) -> None:
        self.path, self.speed = folder / METRICS, speed

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Drop what a killed run wrote after the checkpoint that this one goes on from."""
        self.speed.start(state.global_step)
        if state.is_world_process_zero:
            keep_until(self.path, state.global_step)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Write one line; a number that is not finite (a skipped step's loss) is left out."""
        if not state.is_world_process_zero or logs is None or "train_runtime" in logs:
            return
        step = logs.get("at_step", state.global_step)  # a skipped step is told before it is counted
        kept = {
            name: value
            for name, value in logs.items()
            if name not in ("epoch", "at_step")
            and not (isinstance(value, float) and not math.isfinite(value))
        }
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **kept}) + "\n")


class Evaluations(TrainerCallback):
    """Score the model on held-out examples every so many steps, and at the end."""

    def __init__(
        self,
        recipe: Recipe,
        speed: Speed,
        score: Callable[[Any], dict[str, float]],
        log: Callable[[dict[str, float]], None],
    ) -> None:
        self.recipe, self.speed, self.score, self.log = recipe, speed, score, log

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: Any = None,
        **kwargs: Any,
    ) -> None:
        """Score in every process, since a sharded model needs them all."""
        if state.global_step % self.recipe.evaluate_every and (
            state.global_step != self.recipe.steps
        ):
            return
        with self.speed.pause():
            scores = self.score(model)
        due = control.should_log
        self.log({f"held_out_{name}": value for name, value in scores.items()})
        control.should_log = due  # logging takes it for its own


class Snapshots(TrainerCallback):
    """Keep the maps of a few held-out texts at chosen steps, for the lab."""

    def __init__(self, recipe: Recipe, folder: Path, speed: Speed, ids: torch.Tensor) -> None:
        self.recipe, self.folder, self.speed = recipe, folder / "snapshots", speed
        self.ids = ids

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: Any = None,
        **kwargs: Any,
    ) -> None:
        """Write the maps of every layer as one compressed file."""
        if state.global_step in self.recipe.snapshots and state.is_world_process_zero:
            with self.speed.pause():
                self._keep(model, state.global_step)

    def _keep(self, model: Any, step: int) -> None:
        training = model.training
        model.eval()
        with torch.no_grad():
            out = model(self.ids.to(model.device), output_attentions=True, use_cache=False)
        model.train(training)
        maps = {f"layer{i}": m.float().cpu().numpy() for i, m in enumerate(out.attentions)}
        self.folder.mkdir(exist_ok=True)
        np.savez_compressed(self.folder / f"step{step}.npz", ids=self.ids.numpy(), **maps)


class Milestones(TrainerCallback):
    """Keep the weights of chosen steps, each a model to load."""

    def __init__(self, recipe: Recipe, folder: Path, speed: Speed) -> None:
        self.recipe, self.folder, self.speed = recipe, folder / "milestones", speed

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        """Keep the start, if asked for."""
        self._keep(state, model)

    def on_step_end(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        """Keep this step, if asked for."""
        self._keep(state, model)

    def _keep(self, state: TrainerState, model: Any) -> None:
        step = state.global_step
        if step in self.recipe.milestones and state.is_world_process_zero:
            with self.speed.pause():
                save_whole(model, self.folder / f"step{step}")


def save_whole(model: Any, folder: Path, tokenizer: Any = None) -> None:
    """Save a model, with its tokenizer if it has one, all or nothing."""
    draft = folder.with_name(f"{folder.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    model.save_pretrained(draft)
    if tokenizer is not None:
        tokenizer.save_pretrained(draft)
    shutil.rmtree(folder, ignore_errors=True)
    draft.rename(folder)


def lambdas(model: Any) -> dict[str, float]:
    """Return lam of each layer that has one number for it."""
    found = {}
    for i, layer in enumerate(model.model.attention_layers):
        lam = getattr(layer, "lam", None)
        if isinstance(lam, Lambda):
            with torch.no_grad():
                found[f"lam_{i}"] = float(lam(next(model.parameters())))
    return found


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's metrics; one that was cut off or spoilt is left out."""
    path = folder / METRICS
    lines = []
    for text in (
        path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
    ):
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict) and isinstance(line.get("step"), int):
            lines.append(line)
    return lines


def keep_until(path: Path, step: int) -> None:
    """Drop the lines after a step."""
    kept = [line for line in read_metrics(path.parent) if line["step"] <= step]
    write_whole(path, "".join(json.dumps(line) + "\n" for line in kept))
