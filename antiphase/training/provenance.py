"""What a run was started on and from, stored in its folder and compared when it is resumed."""

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_type_hints

import torch

from antiphase import __version__
from antiphase.cpu import cpu_name
from antiphase.models import AntiphaseConfig
from antiphase.tasks import Language
from antiphase.training.checkpoints import read_json, write_atomic
from antiphase.training.recipe import Recipe

_START_FIELDS = ("initialisation", "branch_scale", "query_key_std")  # how a new model starts
ENVIRONMENT, CORPUS, START = "environment.json", "text.json", "start.json"


def environment() -> dict[str, Any]:
    """Return the versions and the machine that a run uses."""
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


def source_version() -> tuple[str, bool]:
    """Return the git commit of the package's source, and whether files differ from it.

    Returns:
        The commit's hash and whether the package's folder has changes that are not committed;
        ("unknown", False) if the package was not imported from a git working tree.
    """
    package = Path(__file__).parents[1]

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(package), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")  # else a repository around site-packages
        return git("rev-parse", "HEAD"), bool(git("status", "--porcelain", "--", "."))
    except (OSError, subprocess.CalledProcessError):
        return "unknown", False


def check_corpus(folder: Path, recipe: Recipe, data: Language) -> None:
    """Store the identity of a run's text, or raise if it began with another text or tokenizer."""
    found = {name: value for name, value in data.packed.manifest.items() if name != "shards"}
    if recipe.start is not None and "tokenizer" not in recipe.task_options:
        found["tokenizer"] = recipe.start  # wherever it is stored
    what = "the text, its tokenizer or Python's version"
    _store_or_compare(folder / CORPUS, found, ("text_sha256", "tokenizer", "tokens"), what)


def check_start(folder: Path, recipe: Recipe, found: dict[str, Any]) -> None:
    """Store the identity of a pretrained model, or raise if the run began with other weights."""
    what = f"the model {recipe.start!r} (its weights)"
    _store_or_compare(folder / START, found, ("weights",), what)


def _store_or_compare(path: Path, found: dict[str, Any], fields: Sequence[str], what: str) -> None:
    if not path.exists():
        write_atomic(path, json.dumps(found, indent=1))
        return
    before = read_json(path)
    # a field that the file of an older version does not have cannot differ
    if any(name in before and before[name] != found[name] for name in fields):
        raise ValueError(
            f"{path}: {what} has changed since this run began; restore it, or start a new run"
        )


def continue_model(checkpoint: Path, recipe: Recipe, config: AntiphaseConfig) -> None:
    """Raise unless a checkpoint's weights fit the model; keep how they were initialised.

    Args:
        checkpoint: folder to resume from.
        recipe: of the run.
        config: of the recipe's model. Its `initialisation`, `branch_scale` and `query_key_std`
            become those of the checkpoint: runs older than these fields have other values than
            today's defaults.

    Raises:
        ValueError: the checkpoint belongs to a model of another configuration.
    """
    saved, now = AntiphaseConfig.from_pretrained(checkpoint).to_dict(), config.to_dict()
    if saved["vocab_size"] != now["vocab_size"]:
        raise ValueError(
            f"{checkpoint}: was trained with a vocabulary of {saved['vocab_size']}, the task now "
            f"has {now['vocab_size']}; the task, its text or its tokenizer has changed since"
        )
    kept = {name for name in _START_FIELDS if name not in recipe.model}
    for name in get_type_hints(AntiphaseConfig.__init__):
        if name in now and name not in {"use_cache", *kept} and saved.get(name) != now[name]:
            raise ValueError(
                f"{checkpoint}: was trained with {name} = {saved.get(name)}, the recipe now says "
                f"{now[name]}; resume with the recipe that the run began with, or start a new run"
            )
    for name in kept:
        setattr(config, name, saved[name])
