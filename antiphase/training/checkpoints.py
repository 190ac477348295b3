"""Checkpoints that count: a manifest of checksums, written last, says that one is whole."""

import hashlib
import json
import os
import shutil
from pathlib import Path

MANIFEST = "manifest.json"


class CheckpointError(OSError):
    """A checkpoint cannot be written."""


def seal(folder: Path) -> None:
    """Write the checksums of all files, so that the checkpoint counts from now on."""
    files = {
        p.relative_to(folder).as_posix(): _sha256(p)
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }
    files.pop(MANIFEST, None)
    for name in files:
        _flush(folder / name)
    write_whole(folder / MANIFEST, json.dumps(files, indent=1))


def write_whole(path: Path, text: str) -> None:
    """Write a file such that a kill leaves the old one, or none, or the new one; never a part."""
    draft = path.with_name(f"{path.name}.draft")
    draft.write_text(text, encoding="utf-8")
    _flush(draft)
    draft.replace(path)
    _flush(path.parent)


def fault(folder: Path) -> str | None:
    """Say what is wrong with a checkpoint; None if it is whole."""
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
        if _sha256(path) != checksum:
            return f"{name} is damaged (its checksum differs)"
    return None


def newest(folder: Path) -> tuple[Path | None, dict[str, str]]:
    """Return the newest whole checkpoint of a run, and what is wrong with newer ones."""
    faults: dict[str, str] = {}
    for path in sorted(folder.glob("checkpoint-*"), key=_step, reverse=True):
        wrong = fault(path)
        if wrong is None:
            return path, faults
        faults[path.name] = wrong
    return None, faults


def set_aside(folder: Path, names: list[str]) -> None:
    """Rename checkpoints that do not count, out of the way of those to come."""
    for name in names:
        aside = folder / f"damaged-{name}"
        shutil.rmtree(aside, ignore_errors=True)
        (folder / name).rename(aside)


def require_space(folder: Path, wanted: int) -> None:
    """Refuse to start writing what the disk cannot hold."""
    free = shutil.disk_usage(folder).free
    if free < wanted:
        raise CheckpointError(
            f"{folder}: a checkpoint needs {wanted / 1e6:.0f} MB and {free / 1e6:.0f} MB are free; "
            "make room and go on with --resume (the last checkpoint is kept)"
        )


def _step(path: Path) -> int:
    number = path.name.rpartition("-")[2]
    return int(number) if number.isdigit() else -1


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _flush(path: Path) -> None:
    """Make sure that a file or folder is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
