"""One training run in a folder: start it, kill it, resume it, and nothing is lost.

recipe.yaml       what was run                     metrics.jsonl  what was measured
environment.json  machine and versions             checkpoints/   the last complete ones
text.json         identity of the corpus           start.json     identity of a pretrained start
snapshots/        attention maps at chosen steps   milestones/    weights at chosen steps
model/            the trained model, to load       adapter/       of a method that has one
README.md         the run's card                   criterion.json  if it has one, how it was reached
curve.png, tensorboard/
"""

import contextlib
import gc
import json
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import PrinterCallback
from transformers.integrations import TensorBoardCallback
from transformers.utils.logging import disable_progress_bar

from antiphase.allocator import keep_freed_memory
from antiphase.tasks import Language
from antiphase.training import checkpoints, provenance
from antiphase.training.callbacks import Evaluations, Metrics, Milestones, Snapshots, Speed
from antiphase.training.components import Components
from antiphase.training.locks import exclusive_lock
from antiphase.training.progress import Progress
from antiphase.training.recipe import Recipe, load_recipe
from antiphase.training.run_card import CARD, write_run_card
from antiphase.training.stopping import StopOnSignal, StoppedError
from antiphase.training.trainer import RunTrainer

RECIPE, LOCK = "recipe.yaml", ".lock"


def train(recipe: Recipe, folder: Path | str, *, force: bool = False, quiet: bool = False) -> Path:
    """Train from the start, into a new folder.

    Args:
        recipe: what to train, on what, and how.
        folder: of the run.
        force: overwrite an existing run.
        quiet: show no progress bar.

    Returns:
        The folder, with the trained model in `model/`.

    Raises:
        ValueError: the recipe cannot be run, or the folder is not free; nothing was written.
        StoppedError: a signal interrupted the run, which has saved a checkpoint.
        DivergenceError: the loss was not finite, or the gradient norm had a spike.
    """
    folder = Path(folder)
    with process_group(), _created(recipe, folder, force) as components:
        return _run(recipe, components, folder, None, quiet)


def create_run(recipe: Recipe, folder: Path | str, *, force: bool = False) -> Path:
    """Validate a recipe and write its run folder without training; `resume` then trains.

    Args:
        recipe: what to train, on what, and how.
        folder: of the run.
        force: overwrite an existing run.

    Returns:
        The folder.

    Raises:
        ValueError: the recipe cannot be run, or the folder is not free; nothing was written.
    """
    with process_group(), _created(recipe, Path(folder), force):
        return Path(folder)


def resume(folder: Path | str, *, quiet: bool = False) -> Path:
    """Resume a run from its last complete checkpoint, or from the start if there is none.

    Args:
        folder: of the run.
        quiet: show no progress bar.

    Returns:
        The folder; at once if the run has finished.

    Raises:
        ValueError: the folder holds no run, or something that the run began with has changed.
        StoppedError: a signal interrupted the run, which has saved a checkpoint.
        DivergenceError: the loss was not finite, or the gradient norm had a spike.
    """
    folder = Path(folder)
    if not (folder / RECIPE).is_file():
        raise ValueError(f"{folder}: is no run (no {RECIPE} in it)")
    recipe = load_recipe(str(folder / RECIPE))
    if finished(folder):
        if not (folder / CARD).is_file():
            write_run_card(folder, recipe)
        return folder
    with process_group(), _locked(folder):
        components = Components.build(recipe, folder, _processes())
        last, faults = checkpoints.latest_complete(folder / "checkpoints")
        if last is not None and recipe.start is None:
            provenance.continue_model(last, recipe, components.tuned.model.config)
        if _first_process():
            _check_origins(recipe, components, folder)
            _set_aside(folder, faults, last)
        return _run(recipe, components, folder, last, quiet)


def finished(folder: Path) -> bool:
    """Return whether a run has finished: its trained model is written last."""
    return (folder / "model" / "config.json").is_file()


@contextlib.contextmanager
def _created(recipe: Recipe, folder: Path, force: bool) -> Iterator[Components]:
    """Write the folder of a new run, once everything is known to be valid, and hold its lock."""
    _require_free(folder, force)
    components = Components.build(recipe, folder, _processes())
    with _locked(folder):
        _require_free(folder, force)  # another process may have been faster
        if _first_process():
            for old in folder.iterdir():
                if old.name != LOCK:
                    shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()
            about = json.dumps(provenance.environment(), indent=1)
            checkpoints.write_atomic(folder / provenance.ENVIRONMENT, about)
            _check_origins(recipe, components, folder)
            checkpoints.write_atomic(folder / RECIPE, recipe.as_yaml())
        yield components


def _require_free(folder: Path, force: bool) -> None:
    """Raise unless a new run may be written; the first process has done so for the others."""
    if not _first_process() or not folder.exists():
        return
    if not any(path.name != LOCK for path in folder.iterdir()):
        return
    if not (folder / RECIPE).is_file():
        raise ValueError(
            f"{folder}: holds something that is no run (no {RECIPE} in it); give another folder "
            "(--force overwrites runs only)"
        )
    if not force:
        raise ValueError(
            f"{folder}: holds a run already; resume with --resume (from the beginning if it has no "
            "checkpoint yet), or overwrite with --force"
        )


def _check_origins(recipe: Recipe, components: Components, folder: Path) -> None:
    """Store the identity of corpus and start, or raise if a resumed run finds others."""
    if isinstance(components.data, Language):
        provenance.check_corpus(folder, recipe, components.data)
    if components.start is not None:
        provenance.check_start(folder, recipe, components.start)


def _set_aside(folder: Path, faults: dict[str, str], last: Path | None) -> None:
    for name, fault in faults.items():
        path = folder / "checkpoints" / name
        print(f"antiphase: {path}: {fault}; set aside", file=sys.stderr)
    if faults and last is None:
        print(f"antiphase: {folder}: no complete checkpoint; it starts again", file=sys.stderr)
    checkpoints.set_aside(folder / "checkpoints", list(faults))


def _run(
    recipe: Recipe, components: Components, folder: Path, checkpoint: Path | None, quiet: bool
) -> Path:
    keep_freed_memory()
    disable_progress_bar()  # of transformers; there is one of ours
    trainer, stop, progress = _trainer(recipe, components, folder, quiet)
    try:
        if checkpoint is None:
            trainer.train()
        else:
            trainer.resume_from(checkpoint)
    finally:
        stop.release()
        progress.stop()
    if trainer.state.global_step < trainer.criterion.end:
        advice = f"resume with antiphase train --resume {folder}"
        raise StoppedError(trainer.state.global_step, trainer.criterion.end, advice)
    weights = checkpoints.gathered_weights(components.tuned.model)
    if _first_process():
        if recipe.criterion is not None:
            trainer.criterion.write_outcome(folder)
        _finish(recipe, components, folder, weights)
    trainer.accelerator.wait_for_everyone()  # so that no process ends the group too early
    return folder


def _trainer(
    recipe: Recipe, components: Components, folder: Path, quiet: bool
) -> tuple[RunTrainer, StopOnSignal, Progress]:
    """Return the Trainer with all callbacks, and those that have to be released."""
    data, held_out, tuned = components.data, components.held_out, components.tuned
    speed = Speed(recipe.batch_size * data.length)
    trainer = RunTrainer(
        recipe, speed, model=tuned.model, args=components.arguments, train_dataset=data
    )
    trainer.remove_callback(PrinterCallback)
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, TensorBoardCallback):
            callback.logging_dir = str(folder / "tensorboard")
    for callback in tuned.callbacks:  # first, so that the others see what they change
        trainer.add_callback(callback)
    trainer.add_callback(Metrics(folder, speed))
    score = components.scorer(recipe)
    trainer.add_callback(Evaluations(recipe, speed, score, trainer.log, trainer.criterion))
    if recipe.snapshots:
        ids = torch.from_numpy(held_out.examples(range(4)).tokens)
        trainer.add_callback(Snapshots(recipe, folder, speed, ids))
    if recipe.milestones:
        trainer.add_callback(Milestones(recipe, folder, speed))
    progress = Progress(recipe.title, trainer.criterion)
    if not quiet and _first_process():
        trainer.add_callback(progress)
    stop = StopOnSignal(recipe.log_every)
    if _processes() == 1 and threading.current_thread() is threading.main_thread():
        trainer.add_callback(stop)
    return trainer, stop, progress


def _finish(
    recipe: Recipe, components: Components, folder: Path, weights: dict[str, Any] | None
) -> None:
    """Write the card, the adapter, and last the model, whose presence says that the run is over."""
    write_run_card(folder, recipe)
    if components.tuned.adapter is not None:
        checkpoints.save_model_atomic(components.tuned.adapter, folder / "adapter")
    model = components.tuned.fold()
    model.config.use_cache = True  # the Trainer turned it off; generation needs it
    checkpoints.save_model_atomic(model, folder / "model", components.tokenizer, weights)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other runs out of the folder; one lock for all processes of a distributed run."""
    if _first_process():
        with exclusive_lock(folder / LOCK, wait=False):
            yield
    else:
        yield


@contextlib.contextmanager
def process_group() -> Iterator[None]:
    """End the process group that the Trainer starts, if it is ours.

    Without that, gloo's threads are alive while the interpreter finalises. One that then releases a
    tensor needs the GIL, is ended inside a C++ destructor, and aborts the process (SIGABRT). The
    threads end with the last reference to the group. The Trainer's DDP wrapper holds one in a
    reference cycle: hence the collection. It must not be the last one, because DDP frees the group
    without releasing the GIL, for which one of the threads may wait: a deadlock.
    """
    given = dist.is_available() and dist.is_initialized()
    try:
        yield
    finally:
        if not given and dist.is_available() and dist.is_initialized():
            group = dist.group.WORLD
            dist.destroy_process_group()
            gc.collect()
            del group  # PyTorch releases the GIL here


def _processes() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def _first_process() -> bool:
    return os.environ.get("RANK", "0") == "0"
