"""Checkpoints that count: a manifest of checksums, written last, marks a complete one."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.tensor import DTensor

from antiphase.pretrained.structure import trainable
from antiphase.training.digests import file_digest

MANIFEST = "manifest.json"
TRAINED = "trained.safetensors"  # the weights, where only the trained ones are saved


class CheckpointError(OSError):
    """A checkpoint cannot be written."""


def write_manifest(folder: Path) -> None:
    """Write the checksums of all files, which makes the checkpoint complete."""
    files = {
        path.relative_to(folder).as_posix(): file_digest(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    files.pop(MANIFEST, None)
    for name in files:
        _flush(folder / name)
    write_atomic(folder / MANIFEST, json.dumps(files, indent=1))


def write_atomic(path: Path, text: str) -> None:
    """Write a file such that a kill leaves the old one, none, or the new one; never a part."""
    draft = path.with_name(f"{path.name}.draft")
    draft.write_text(text, encoding="utf-8")
    _flush(draft)
    draft.replace(path)
    _flush(path.parent)


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        ValueError: the file cannot be read, or holds something else.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: cannot be read ({error})") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path}: holds a {type(found).__name__}, expected names and values")
    return found


def gathered_weights(model: nn.Module) -> dict[str, Any] | None:
    """Return the complete weights of a sharded model, on the CPU; None if it is not sharded.

    All processes call it together; only the first gets the weights, the others get none of them.
    """
    if not any(isinstance(p, DTensor) for p in model.parameters()):
        return None
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return get_model_state_dict(model, options=options)


def save_model_atomic(
    model: Any, folder: Path, tokenizer: Any = None, weights: dict[str, Any] | None = None
) -> None:
    """Save a model or an adapter, with its tokenizer if it has one, completely or not at all.

    Args:
        model: to save.
        folder: to write.
        tokenizer: saved with it.
        weights: of a sharded model, from `gathered_weights`.
    """
    draft = folder.with_name(f"{folder.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    model.save_pretrained(draft, **({} if weights is None else {"state_dict": weights}))
    if tokenizer is not None:
        tokenizer.save_pretrained(draft)
    shutil.rmtree(folder, ignore_errors=True)
    draft.rename(folder)


def save_trained(model: nn.Module, folder: Path) -> None:
    """Save the parameters that are trained, and no others."""
    folder.mkdir(parents=True, exist_ok=True)
    trained = {name: p.detach().contiguous() for name, p in trainable(model).items()}
    save_file(trained, folder / TRAINED)


def load_trained(model: nn.Module, folder: Path) -> None:
    """Load the parameters that `save_trained` saved into the same model.

    Raises:
        ValueError: the checkpoint holds other parameters than the model trains.
    """
    own, saved = trainable(model), load_file(folder / TRAINED)
    shapes = [{name: tuple(p.shape) for name, p in side.items()} for side in (own, saved)]
    if other := dict(set(shapes[0].items()) ^ set(shapes[1].items())):
        raise ValueError(
            f"{folder / TRAINED}: holds other parameters than this model trains, such as "
            f"{min(other)}; resume with the model and the method that the run began with"
        )
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(saved[name])


def find_fault(folder: Path) -> str | None:
    """Return what is wrong with a checkpoint; None if it is complete."""
    try:
        files = json.loads((folder / MANIFEST).read_text())
    except FileNotFoundError:
        return "it was not finished (no manifest)"
    except (OSError, ValueError):
        files = None
    if not isinstance(files, dict) or not files:
        return "its manifest cannot be read"
    for name, checksum in files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if file_digest(path) != checksum:
            return f"{name} is damaged (its checksum differs)"
    return None


def latest_complete(folder: Path) -> tuple[Path | None, dict[str, str]]:
    """Find the checkpoint to resume from.

    Args:
        folder: of a run's checkpoints.

    Returns:
        The latest complete checkpoint, or None, and the faults of later ones by name.
    """
    faults: dict[str, str] = {}
    for path in sorted(folder.glob("checkpoint-*"), key=_step, reverse=True):
        fault = find_fault(path)
        if fault is None:
            return path, faults
        faults[path.name] = fault
    return None, faults


def set_aside(folder: Path, names: list[str]) -> None:
    """Rename damaged checkpoints, so that new ones can take their names."""
    for name in names:
        aside = folder / f"damaged-{name}"
        shutil.rmtree(aside, ignore_errors=True)
        (folder / name).rename(aside)


def require_space(folder: Path, needed: int) -> None:
    """Raise if the disk cannot hold that many bytes more."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise CheckpointError(
            f"{folder}: a checkpoint needs {needed / 1e6:.0f} MB and {free / 1e6:.0f} MB are free; "
            "free disk space and resume the run (the last checkpoint is kept)"
        )


def _step(path: Path) -> int:
    number = path.name.rpartition("-")[2]
    return int(number) if number.isdigit() else -1


def _flush(path: Path) -> None:
    """Make sure that a file or folder is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
