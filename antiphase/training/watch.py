"""What is written down while a run goes: metrics, lambdas, gradients, speed, accuracy, maps."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from antiphase.attention.parts import Lambda
from antiphase.training.recipe import Recipe
from antiphase.training.trouble import TroubleError, steepest_layer

TIMED = ("seconds", "tokens_per_second")  # differ between runs that are otherwise the same
METRICS = "metrics.jsonl"


class Metrics(TrainerCallback):
    """Write one line of metrics.jsonl at each logging step and evaluation."""

    def __init__(
        self, recipe: Recipe, folder: Path, tokens: int, evaluate: Callable[..., Any]
    ) -> None:
        self.recipe, self.path, self.tokens = recipe, folder / METRICS, tokens
        self.evaluate = evaluate
        self._clock, self._step = time.perf_counter(), 0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Drop what a killed run wrote after the checkpoint that this one goes on from."""
        self._clock, self._step = time.perf_counter(), state.global_step
        if state.is_world_process_zero:
            keep_until(self.path, state.global_step)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        model: Any = None,
        **kwargs: Any,
    ) -> None:
        """Write the Trainer's numbers and ours."""
        if not state.is_world_process_zero or logs is None or "train_runtime" in logs:
            return
        now, steps = time.perf_counter(), state.global_step - self._step
        rate = {}
        if steps > 0:
            rate["tokens_per_second"] = steps * self.tokens / (now - self._clock)
        self._clock, self._step = now, state.global_step
        kept = {
            name: logs[name]
            for name in ("loss", "grad_norm", "learning_rate", "why")
            if name in logs
        }
        self._write(state.global_step, kept | lambdas(model) | rate)

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: Any = None,
        **kwargs: Any,
    ) -> None:
        """Evaluate on held-out examples, now and at the end."""
        step, every = state.global_step, self.recipe.evaluate_every
        if step % every and step != self.recipe.steps:
            return
        before = time.perf_counter()
        scores = self.evaluate(model)
        self._clock += time.perf_counter() - before
        if state.is_world_process_zero:
            self._write(step, {f"held_out_{name}": value for name, value in scores.items()})

    def _write(self, step: int, values: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **values}) + "\n")


class Spikes(TrainerCallback):
    """Watch the gradient's norm; one far above its running mean is trouble."""

    def __init__(self, recipe: Recipe, report: Callable[[TroubleError], None]) -> None:
        self.recipe, self.report = recipe, report
        self._mean: float | None = None

    def on_pre_optimizer_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: Any = None,
        **kwargs: Any,
    ) -> None:
        """Compare this step's norm, after clipping, parameter by parameter."""
        if self.recipe.spike is None:
            return
        norms = [p.grad.norm() for p in model.parameters() if p.grad is not None]
        norm = float(torch.stack(norms).norm())
        mean = self._mean
        if mean is not None and norm > self.recipe.spike * mean:
            what = f"the gradient's norm {norm:.3g} is {norm / mean:.1f} times its running mean"
            self.report(TroubleError(what, state.global_step + 1, steepest_layer(model)))
            return
        self._mean = norm if mean is None else 0.95 * mean + 0.05 * norm


class Snapshots(TrainerCallback):
    """Keep the maps of a few held-out texts at chosen steps, for the lab."""

    def __init__(self, recipe: Recipe, folder: Path, ids: torch.Tensor) -> None:
        self.recipe, self.folder, self.ids = recipe, folder / "snapshots", ids

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: Any = None,
        **kwargs: Any,
    ) -> None:
        """Write the maps of every layer as one compressed file."""
        if state.global_step not in self.recipe.snapshots or not state.is_world_process_zero:
            return
        training = model.training
        model.eval()
        with torch.no_grad():
            out = model(self.ids.to(model.device), output_attentions=True, use_cache=False)
        model.train(training)
        maps = {f"layer{i}": m.float().cpu().numpy() for i, m in enumerate(out.attentions)}
        self.folder.mkdir(exist_ok=True)
        np.savez_compressed(
            self.folder / f"step{state.global_step}.npz", ids=self.ids.numpy(), **maps
        )


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
    """Return the lines of a run's metrics; one that was cut off by a kill is left out."""
    path = folder / METRICS
    lines = []
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            lines.append(json.loads(text))
        except ValueError:
            continue
    return lines


def keep_until(path: Path, step: int) -> None:
    """Drop the lines after a step."""
    kept = [line for line in read_metrics(path.parent) if line["step"] <= step]
    draft = path.with_suffix(".draft")
    draft.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
    draft.replace(path)
