"""One training run, in a folder: start it, kill it, go on with it, and nothing is lost.

recipe.yaml      what was run          metrics.jsonl   what was measured
checkpoints/     the last whole ones   text.json       what text it was
snapshots/       maps at chosen steps  milestones/     weights at chosen steps
tensorboard/     if asked for
model/           the end, to load      environment.json, README.md, curve.png
"""

import json
import os
import platform
import shutil
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_type_hints

import torch
from transformers import PrinterCallback, TrainingArguments, set_seed
from transformers.integrations import TensorBoardCallback
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK
from transformers.utils.logging import disable_progress_bar

from antiphase import __version__
from antiphase.cpu import cpu_name, guard_bf16
from antiphase.evaluation import score_answers, score_text
from antiphase.models import AntiphaseConfig, AntiphaseForCausalLM, preset
from antiphase.options import fitted
from antiphase.tasks import Language, Task, task
from antiphase.training import checkpoints
from antiphase.training.callbacks import (
    Evaluations,
    Metrics,
    Milestones,
    Snapshots,
    Speed,
    save_whole,
)
from antiphase.training.progress import Progress
from antiphase.training.recipe import Recipe, load_recipe
from antiphase.training.run_card import write_run_card
from antiphase.training.stopping import Stop, StoppedError
from antiphase.training.trainer import RunTrainer, arguments

RECIPE = "recipe.yaml"


def dataset(recipe: Recipe, split: str, size: int) -> Task | Language:
    """Return a split of the recipe's task."""
    for name in {"split", "size", "seed"} & set(recipe.task_options):
        raise ValueError(f"task_options: {name} is no option of a task; the run itself sets it")
    kind: Any = Language if recipe.task == "language" else task(recipe.task)
    return kind(split=split, size=size, seed=recipe.seed, **recipe.task_options)


def model_config(recipe: Recipe, data: Task | Language) -> AntiphaseConfig:
    """Return the model's configuration: a preset, sized to the task."""
    own = {"attention": "attention", "attention_options": "attention_options"}
    hints = get_type_hints(AntiphaseConfig.__init__)
    for name in recipe.model:
        if name in own:
            raise ValueError(f"model: {name} is a field of the recipe itself, set {own[name]}")
        if name not in hints or name in ("kwargs", "return"):
            known = ", ".join(n for n in hints if n not in ("kwargs", "return", *own))
            raise ValueError(f"model: has no field {name!r}; its fields are {known}")
    fields = {
        "vocab_size": data.vocab_size,
        "max_position_embeddings": max(2048, data.length),
        **{name: fitted(f"model.{name}", v, hints[name]) for name, v in recipe.model.items()},
    }
    for name, value in fields.items():
        if type(value) is int and value < 1 and not name.endswith("token_id"):
            raise ValueError(f"model.{name}: got {value}, expected at least 1")
    if fields["vocab_size"] < data.vocab_size:
        raise ValueError(
            f"model: vocab_size {fields['vocab_size']} is smaller than the task's {data.vocab_size}"
        )
    return preset(
        recipe.size, recipe.attention, attention_options=recipe.attention_options, **fields
    )


def train(recipe: Recipe, folder: Path | str, *, force: bool = False, quiet: bool = False) -> Path:
    """Train from the start into a new folder; overwrite an existing run only with `force`."""
    folder = Path(folder)
    # the others of a distributed run come later than the first one's files
    if _first_process() and folder.exists() and any(folder.iterdir()):
        if not force:
            raise ValueError(
                f"{folder}: holds something already; go on with --resume, or overwrite with --force"
            )
        if not (folder / RECIPE).is_file():
            raise ValueError(
                f"{folder}: holds something that is no run (no {RECIPE}); --force overwrites runs "
                "only"
            )
    parts = _Parts.of(recipe, folder)  # before anything is lost or written, for what is not there
    if _first_process():
        for old in folder.iterdir() if folder.exists() else ():
            shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()
        folder.mkdir(parents=True, exist_ok=True)
        checkpoints.write_whole(folder / "environment.json", json.dumps(environment(), indent=1))
        checkpoints.write_whole(folder / RECIPE, recipe.as_yaml())
    return _go(recipe, parts, folder, None, quiet)


def resume(folder: Path | str, *, quiet: bool = False) -> Path:
    """Go on with a run from its last whole checkpoint, or from the start if there is none."""
    folder = Path(folder)
    if not (folder / RECIPE).is_file():
        raise ValueError(f"{folder}: is no run (no {RECIPE} in it)")
    recipe = load_recipe(str(folder / RECIPE))
    if (folder / "model" / "config.json").is_file():
        if not (folder / "README.md").is_file():
            write_run_card(folder, recipe)
        return folder
    parts = _Parts.of(recipe, folder)
    last, faults = checkpoints.newest(folder / "checkpoints")
    if last is not None:
        _same_model(last, parts.model.config)
    if _first_process():
        for name, wrong in faults.items():
            print(
                f"antiphase: {folder / 'checkpoints' / name}: {wrong}; set aside", file=sys.stderr
            )
        if faults and last is None:
            print(f"antiphase: {folder}: no whole checkpoint; it starts again", file=sys.stderr)
        checkpoints.set_aside(folder / "checkpoints", list(faults))
    return _go(recipe, parts, folder, last, quiet)


def environment() -> dict[str, Any]:
    """Return what a run ran on."""
    packages = ("torch", "transformers", "accelerate", "numpy")
    return {
        "antiphase": __version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        **{name: version(name) for name in packages},
    }


@dataclass(frozen=True)
class _Parts:
    """What a recipe asks for."""

    data: Task | Language
    held_out: Task | Language
    model: AntiphaseForCausalLM
    arguments: TrainingArguments

    @classmethod
    def of(cls, recipe: Recipe, folder: Path) -> "_Parts":
        if os.environ.get("ACCELERATE_USE_FSDP", "").lower() in ("1", "true"):
            _refuse_fsdp_on_cpu()
        _require_reporters(recipe)
        guard_bf16()
        if recipe.threads is not None:
            torch.set_num_threads(recipe.threads)
        set_seed(recipe.seed)
        data = dataset(recipe, "train", recipe.steps * recipe.batch_size)
        held_out = dataset(recipe, "validation", recipe.evaluate_examples)
        model = AntiphaseForCausalLM(model_config(recipe, data))
        return cls(data, held_out, model, arguments(recipe, folder, _processes()))


def _go(recipe: Recipe, parts: _Parts, folder: Path, checkpoint: Path | None, quiet: bool) -> Path:
    disable_progress_bar()  # there is one of ours
    data, held_out, model = parts.data, parts.held_out, parts.model
    if isinstance(data, Language) and _first_process():
        _same_text(folder / "text.json", data.packed.manifest)
    speed = Speed(recipe.batch_size * data.length)
    trainer = RunTrainer(recipe, speed, model=model, args=parts.arguments, train_dataset=data)
    trainer.remove_callback(PrinterCallback)
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, TensorBoardCallback):
            callback.logging_dir = str(folder / "tensorboard")
    trainer.add_callback(Metrics(folder, speed))
    trainer.add_callback(Evaluations(recipe, speed, _scorer(held_out), trainer.log))
    if recipe.snapshots:
        ids = torch.from_numpy(held_out.examples(range(4)).tokens)
        trainer.add_callback(Snapshots(recipe, folder, speed, ids))
    if recipe.milestones:
        trainer.add_callback(Milestones(recipe, folder, speed))
    title = f"{recipe.task}, {recipe.attention}, seed {recipe.seed}"
    progress = Progress(title, recipe.steps)
    if not quiet and _first_process():
        trainer.add_callback(progress)
    stop = Stop(recipe.log_every)
    if _processes() == 1 and threading.current_thread() is threading.main_thread():
        trainer.add_callback(stop)
    try:
        if checkpoint is None:
            trainer.train()
        else:
            trainer.go_on_from(checkpoint)
    finally:
        stop.release()
        progress.bar.stop()
    if trainer.state.global_step < recipe.steps:
        raise StoppedError(
            f"stopped at step {trainer.state.global_step} of {recipe.steps}; go on with "
            f"antiphase train --resume {folder}"
        )
    if _first_process():
        _finish(model, data, recipe, folder)
    return folder


def _scorer(held_out: Task | Language) -> Callable[[Any], dict[str, float]]:
    if isinstance(held_out, Language):
        return lambda model: score_text(model, held_out, len(held_out))
    return lambda model: score_answers(model, held_out, len(held_out))


def _finish(
    model: AntiphaseForCausalLM, data: Task | Language, recipe: Recipe, folder: Path
) -> None:
    """Write the run's card and the trained model, whose presence says that the run has ended."""
    write_run_card(folder, recipe)
    model.config.use_cache = True  # the Trainer turned it off; who generates wants it
    tokenizer = data.packed.tokenizer() if isinstance(data, Language) else None
    save_whole(model, folder / "model", tokenizer)


def _same_model(checkpoint: Path, config: AntiphaseConfig) -> None:
    """Refuse to go on with weights of another model."""
    saved, now = AntiphaseConfig.from_pretrained(checkpoint).to_dict(), config.to_dict()
    if saved["vocab_size"] != now["vocab_size"]:
        raise ValueError(
            f"{checkpoint}: was trained with a vocabulary of {saved['vocab_size']}, the task now "
            f"has {now['vocab_size']}; the task, its text or its tokenizer has changed since"
        )
    for name in get_type_hints(AntiphaseConfig.__init__):
        if name != "use_cache" and name in now and saved.get(name) != now[name]:
            raise ValueError(
                f"{checkpoint}: was trained with {name} = {saved.get(name)}, the recipe now says "
                f"{now[name]}; a run goes on as it began, a new one may differ"
            )


def _same_text(written: Path, manifest: dict[str, Any]) -> None:
    """Write what the text is; if that was written before, it must be the same."""
    if not written.exists():
        checkpoints.write_whole(written, json.dumps(manifest, indent=1))
        return
    before = json.loads(written.read_text())
    if any(before[name] != manifest[name] for name in ("sha256", "tokenizer", "tokens")):
        raise ValueError(
            f"{written}: the text, its tokenizer or Python's version has changed since this run "
            "began; bring it back, or start a new run"
        )


def _require_reporters(recipe: Recipe) -> None:
    for name in recipe.report:
        if name not in INTEGRATION_TO_CALLBACK:
            raise ValueError(
                f"report: got {name!r}, allowed are {', '.join(sorted(INTEGRATION_TO_CALLBACK))}"
            )
        try:
            INTEGRATION_TO_CALLBACK[name]()
        except (RuntimeError, ImportError) as error:
            raise ValueError(f"report: {name!r} needs its package ({error})") from error


def _refuse_fsdp_on_cpu() -> None:
    if not torch.accelerator.is_available():
        raise ValueError(
            "FSDP: the Trainer shards over accelerators only and would quietly run plain data "
            "parallel on CPUs; leave FSDP out, or shard the model itself with fully_shard"
        )


def _processes() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def _first_process() -> bool:
    return os.environ.get("RANK", "0") == "0"
