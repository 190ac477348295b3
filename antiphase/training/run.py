"""One training run, in a folder: start it, kill it, go on with it, and nothing is lost.

recipe.yaml      what was run          metrics.jsonl   what was measured
checkpoints/     the last whole ones   snapshots/      maps at chosen steps
tensorboard/     if asked for          text.json       what text it was
model/           the end, to load      environment.json, README.md, curve.png
"""

import json
import os
import platform
import shutil
import sys
import threading
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import PrinterCallback, set_seed
from transformers.integrations import TensorBoardCallback
from transformers.utils.logging import disable_progress_bar

from antiphase import __version__
from antiphase.evaluation import score_answers, score_text
from antiphase.models import AntiphaseConfig, AntiphaseForCausalLM, preset
from antiphase.ops.fused_cpu.cpu import cpu_name, guard_bf16
from antiphase.tasks import Language, Task, task
from antiphase.training import checkpoints
from antiphase.training.card import write_run_card
from antiphase.training.progress import Progress
from antiphase.training.recipe import Recipe, load_recipe
from antiphase.training.stopping import Stop, StoppedError
from antiphase.training.trainer import RunTrainer, arguments
from antiphase.training.watch import Evaluations, Metrics, Snapshots, Speed

RECIPE = "recipe.yaml"


def dataset(recipe: Recipe, split: str, size: int) -> Task | Language:
    """Return a split of the recipe's task."""
    kind: Any = Language if recipe.task == "language" else task(recipe.task)
    return kind(split=split, size=size, seed=recipe.seed, **recipe.task_options)


def model_config(recipe: Recipe, data: Task | Language) -> AntiphaseConfig:
    """Return the model's configuration: a preset, sized to the task."""
    fields = {
        "vocab_size": data.vocab_size,
        "max_position_embeddings": max(2048, data.length),
        **recipe.model,
    }
    if fields["vocab_size"] < data.vocab_size:
        raise ValueError(
            f"model: vocab_size {fields['vocab_size']} is smaller than the task's {data.vocab_size}"
        )
    return preset(
        recipe.size, recipe.attention, attention_options=recipe.attention_options, **fields
    )


def train(recipe: Recipe, folder: Path, *, force: bool = False, quiet: bool = False) -> Path:
    """Train from the start into a new folder; overwrite an existing run only with `force`."""
    if _first_process():  # the others of a distributed run come later than its first file
        if folder.exists() and any(folder.iterdir()):
            if not force:
                raise ValueError(
                    f"{folder}: holds something already; go on with --resume, or overwrite with "
                    "--force"
                )
            shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
        recipe.save(folder / RECIPE)
        (folder / "environment.json").write_text(json.dumps(environment(), indent=1))
    return _go(recipe, folder, None, quiet)


def resume(folder: Path, *, quiet: bool = False) -> Path:
    """Go on with a run from its last whole checkpoint, or from the start if there is none."""
    if not (folder / RECIPE).is_file():
        raise ValueError(f"{folder}: is no run (no {RECIPE} in it)")
    recipe = load_recipe(str(folder / RECIPE))
    if (folder / "model" / "config.json").is_file():
        return folder
    last, faults = checkpoints.newest(folder / "checkpoints")
    for name, wrong in faults.items():
        print(f"antiphase: {folder / 'checkpoints' / name}: {wrong}; left out", file=sys.stderr)
    if _first_process():
        checkpoints.discard(folder / "checkpoints", list(faults))
    return _go(recipe, folder, last, quiet)


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


def _go(recipe: Recipe, folder: Path, checkpoint: Path | None, quiet: bool) -> Path:
    if os.environ.get("ACCELERATE_USE_FSDP", "").lower() in ("1", "true"):
        _refuse_fsdp_on_cpu()
    guard_bf16()
    disable_progress_bar()  # there is one of ours
    if recipe.threads is not None:
        torch.set_num_threads(recipe.threads)
    set_seed(recipe.seed)
    data = dataset(recipe, "train", recipe.steps * recipe.batch_size)
    held_out = dataset(recipe, "validation", recipe.evaluate_examples)
    config = model_config(recipe, data)
    if checkpoint is not None:
        _same_vocabulary(checkpoint, config)
    model = AntiphaseForCausalLM(config)
    if isinstance(data, Language) and _first_process():
        (folder / "text.json").write_text(json.dumps(data.packed.manifest, indent=1))

    processes = int(os.environ.get("WORLD_SIZE", "1"))
    speed = Speed(recipe.batch_size * data.length)
    trainer = RunTrainer(
        recipe, speed, model=model, args=arguments(recipe, folder, processes), train_dataset=data
    )
    trainer.remove_callback(PrinterCallback)
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, TensorBoardCallback):
            callback.logging_dir = str(folder / "tensorboard")
    trainer.add_callback(Metrics(folder, speed))
    trainer.add_callback(Evaluations(recipe, speed, _scorer(held_out), trainer.log))
    if recipe.snapshots:
        ids = torch.from_numpy(held_out.examples(range(4)).tokens)
        trainer.add_callback(Snapshots(recipe, folder, ids))
    if not quiet and _first_process():
        trainer.add_callback(Progress(recipe))
    stop = Stop(recipe.log_every)
    if processes == 1 and threading.current_thread() is threading.main_thread():
        trainer.add_callback(stop)
    try:
        if checkpoint is None:
            trainer.train()
        else:
            trainer.go_on_from(checkpoint)
    finally:
        stop.release()
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
    """Write the trained model, all or nothing, and the run's card."""
    draft = folder / "model.draft"
    shutil.rmtree(draft, ignore_errors=True)
    model.save_pretrained(draft)
    if isinstance(data, Language):
        data.packed.tokenizer().save_pretrained(draft)
    draft.rename(folder / "model")
    write_run_card(folder, recipe)


def _same_vocabulary(checkpoint: Path, config: AntiphaseConfig) -> None:
    saved = AntiphaseConfig.from_pretrained(checkpoint)
    if saved.vocab_size != config.vocab_size:
        raise ValueError(
            f"{checkpoint}: was trained with a vocabulary of {saved.vocab_size}, the task now has "
            f"{config.vocab_size}; the text or its tokenizer has changed since"
        )


def _refuse_fsdp_on_cpu() -> None:
    if not torch.accelerator.is_available():
        raise ValueError(
            "FSDP: the Trainer shards over accelerators only and would quietly run plain data "
            "parallel on CPUs; leave FSDP out, or shard the model itself with fully_shard"
        )


def _first_process() -> bool:
    return os.environ.get("RANK", "0") == "0"
