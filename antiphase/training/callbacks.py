"""What a run records while it trains: metrics, lam, speed, held-out scores, maps, weights."""

import contextlib
import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from antiphase.attention.parts import Lambda
from antiphase.models import AntiphaseForCausalLM
from antiphase.pretrained.dex import operators
from antiphase.training.checkpoints import gathered_weights, save_model_atomic, write_atomic
from antiphase.training.criterion import CriterionTracker
from antiphase.training.recipe import Recipe

TIMED = ("tokens_per_second", "cpu_seconds")  # differ between runs that are otherwise the same
METRICS = "metrics.jsonl"


class Speed:
    """Tokens per second of training; what is done between its steps does not count.

    Args:
        tokens: per optimiser step.
    """

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self._clock, self._step = time.perf_counter(), 0

    def start(self, step: int) -> None:
        """Count from this step."""
        self._clock, self._step = time.perf_counter(), step

    def since(self, step: int) -> dict[str, float]:
        """Return the speed since the last call, and count from this step."""
        steps, seconds = step - self._step, time.perf_counter() - self._clock
        self.start(step)
        return {"tokens_per_second": steps * self.tokens / seconds} if steps else {}

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Do not count the time spent inside."""
        before = time.perf_counter()
        yield
        self._clock += time.perf_counter() - before


class Metrics(TrainerCallback):
    """Write everything that is logged to metrics.jsonl, one line per log.

    A held-out score has `cpu_seconds` beside it: the CPU time of the first process since the run
    began, over all its threads, without what a kill undid.
    """

    def __init__(self, folder: Path, speed: Speed) -> None:
        self.path, self.speed = folder / METRICS, speed
        self._earlier, self._began = 0.0, time.process_time()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Drop what a killed run wrote after the checkpoint that this one resumes from."""
        self.speed.start(state.global_step)
        if state.is_world_process_zero:
            truncate_metrics(self.path, state.global_step)
        self._earlier, self._began = cpu_seconds(self.path.parent) or 0.0, time.process_time()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Write one line; values that are not finite (a skipped step's loss) are left out."""
        if not state.is_world_process_zero or logs is None or "train_runtime" in logs:
            return
        step = logs.get("at_step", state.global_step)  # a skip is logged before its step is counted
        kept = {
            name: value
            for name, value in logs.items()
            if name not in ("epoch", "at_step")
            and not (isinstance(value, float) and not math.isfinite(value))
        }
        if "held_out_loss" in kept:
            used = self._earlier + time.process_time() - self._began
            kept["cpu_seconds"] = round(used, 3)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **kept}) + "\n")


class Evaluations(TrainerCallback):
    """Score the model on held-out examples every `evaluate_every` steps, and at the end.

    A run to a criterion decays and ends as these scores decide.
    """

    def __init__(
        self,
        recipe: Recipe,
        speed: Speed,
        score: Callable[[Any], dict[str, float]],
        log: Callable[[dict[str, Any]], None],
        criterion: CriterionTracker,
    ) -> None:
        self.recipe, self.speed, self.score, self.log = recipe, speed, score, log
        self.criterion = criterion

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: Any = None,
        **kwargs: Any,
    ) -> None:
        """Score in every process, since a sharded model needs them all."""
        step = state.global_step
        if step % self.recipe.evaluate_every and step != self.criterion.end:
            return
        with self.speed.pause():
            scores = self.score(model)
        due = control.should_log
        self.log({f"held_out_{name}": value for name, value in scores.items()})
        if self.criterion.record(step, scores):
            self.log({"criterion_step": self.criterion.step})
        control.should_log = due  # our logs must not count as the one that is due
        if step == self.criterion.end:
            control.should_save = control.should_training_stop = True


class Snapshots(TrainerCallback):
    """Keep the attention maps of a few held-out sequences at chosen steps."""

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
        if state.global_step in self.recipe.snapshots:  # all processes: the model may be sharded
            with self.speed.pause():
                self._save(model, state.global_step, state.is_world_process_zero)

    def _save(self, model: Any, step: int, writes: bool) -> None:
        training = model.training
        model.eval()
        with torch.no_grad():
            out = model(self.ids.to(model.device), output_attentions=True, use_cache=False)
        model.train(training)
        if not writes:
            return
        maps = {f"layer{i}": m.float().cpu().numpy() for i, m in enumerate(out.attentions)}
        self.folder.mkdir(exist_ok=True)
        np.savez_compressed(self.folder / f"step{step}.npz", ids=self.ids.numpy(), **maps)


class Milestones(TrainerCallback):
    """Keep the weights of chosen steps, each as a model to load."""

    def __init__(self, recipe: Recipe, folder: Path, speed: Speed) -> None:
        self.recipe, self.folder, self.speed = recipe, folder / "milestones", speed

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        """Keep the initial weights, if requested."""
        self._save(state, model)

    def on_step_end(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        """Keep the weights of this step, if requested."""
        self._save(state, model)

    def _save(self, state: TrainerState, model: Any) -> None:
        step = state.global_step
        if step not in self.recipe.milestones:
            return
        with self.speed.pause():
            weights = gathered_weights(model)
            if state.is_world_process_zero:
                save_model_atomic(model, self.folder / f"step{step}", weights=weights)


@torch.no_grad()
def lambdas(model: Any) -> dict[str, float]:
    """Return lam per layer, where it is a scalar: of differential attention, or of DEX."""
    if not isinstance(model, AntiphaseForCausalLM):
        dex = enumerate(operators(model).values())
        return {f"lam_{i}": float(operator.lam.value()) for i, operator in dex}
    found = {}
    for i, layer in enumerate(model.model.attention_layers):
        lam = getattr(layer, "lam", None)
        if isinstance(lam, Lambda):
            found[f"lam_{i}"] = complete_float(lam(next(model.parameters())))
    return found


def complete_float(value: torch.Tensor) -> float:
    """Return a scalar as a number; that of a sharded model is put together by all processes."""
    return float(value.full_tensor() if isinstance(value, DTensor) else value)


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's metrics; damaged ones are left out.

    Args:
        folder: of the run.

    Returns:
        One dictionary per log, each with `step`; empty if the run has logged nothing.
    """
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


def cpu_seconds(folder: Path) -> float | None:
    """Return the CPU time of a run so far; None if none was recorded."""
    found = [line["cpu_seconds"] for line in read_metrics(folder) if "cpu_seconds" in line]
    return float(found[-1]) if found else None


def truncate_metrics(path: Path, step: int) -> None:
    """Drop the lines after a step."""
    kept = [line for line in read_metrics(path.parent) if line["step"] <= step]
    write_atomic(path, "".join(json.dumps(line) + "\n" for line in kept))
