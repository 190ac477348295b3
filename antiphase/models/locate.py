"""Find the model that a user names; every command uses this.

A name is one of: a model that ships with the package, `smollm2`, a folder with a config.json, the
folder of a training run, or a name on the Hugging Face hub.
"""

import difflib
import json
from importlib import resources
from pathlib import Path
from typing import Any

from antiphase.models.gguf import NAME as SMOLLM2
from antiphase.models.gguf import smollm2

HUB_TIMEOUT = 5.0  # seconds; a wrong name must fail at once, also offline


def shipped_models() -> dict[str, Path]:
    """Return the small trained models that come with the package, by name."""
    root = Path(str(resources.files("antiphase.models") / "shipped"))
    return {
        folder.name: folder
        for folder in sorted(root.iterdir())
        if (folder / "config.json").is_file()
    }


def locate_model(name: str) -> str:
    """Return the folder or hub name that `from_pretrained` can load.

    Args:
        name: a shipped model, `smollm2`, a model folder, a run folder, or a hub name.

    Returns:
        A folder's path, or the hub name after the hub (or its local cache) has confirmed it.

    Raises:
        ValueError: nothing of that name exists, or its config.json is none; says what is allowed
            and what was probably meant.
    """
    if name == SMOLLM2:
        return str(smollm2())
    folder = Path(name).expanduser()
    if folder.is_dir():
        return str(_model_folder(folder))
    if name in shipped_models():
        return str(shipped_models()[name])
    if folder.exists():
        raise ValueError(f"{name}: is a file; give the folder of a model or of a run")
    if _looks_like_a_path(name):
        raise ValueError(f"{name}: no such folder{_suggestion(name)}")
    try:
        require_on_hub(name, "config.json")
    except ValueError as error:
        raise ValueError(f"{error}{_suggestion(name)}") from error
    return name


def _model_folder(folder: Path) -> Path:
    for candidate in (folder, folder / "model"):
        if (candidate / "config.json").is_file():
            read_config(candidate)
            return candidate
    if (folder / "recipe.yaml").is_file():
        raise ValueError(
            f"{folder}: this run has not finished, so it has no model yet; resume it with "
            f"antiphase train --resume {folder}"
        )
    raise ValueError(f"{folder}: no config.json in it; give the folder of a model or of a run")


def read_config(folder: Path) -> dict[str, Any]:
    """Return the fields of a folder's config.json.

    Raises:
        ValueError: it is not JSON, or holds no fields; transformers would fail somewhere inside.
    """
    path = folder / "config.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: is not JSON ({error})") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path}: expected fields and their values, got {type(found).__name__}")
    return found


def _looks_like_a_path(name: str) -> bool:
    return name.startswith((".", "/", "~")) or name.count("/") > 1 or name.endswith("/")


def require_on_hub(name: str, *files: str) -> None:
    """Raise at once, also offline, unless the hub or its cache on this machine has a repository.

    Args:
        name: of the repository.
        *files: one of them in the cache is enough.

    Raises:
        ValueError: there is no such repository, or the hub cannot be reached.
    """
    from huggingface_hub import HfApi, constants, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    try:
        if any(isinstance(try_to_load_from_cache(name, file), str) for file in files):
            return
        if constants.HF_HUB_OFFLINE:
            raise ValueError(f"{name}: is not on this machine, and HF_HUB_OFFLINE is set")
        HfApi().model_info(name, timeout=HUB_TIMEOUT)
    except HFValidationError as error:
        raise ValueError(f"{name}: is not a valid name on the hub") from error
    except RepositoryNotFoundError as error:
        raise ValueError(f"{name}: the hub has no such model") from error
    except ValueError:
        raise
    except Exception as error:  # connection errors: their class depends on the hub's HTTP client
        raise ValueError(
            f"{name}: is not on this machine, and the hub cannot be reached ({error})"
        ) from error


def _suggestion(name: str) -> str:
    known = [*shipped_models(), SMOLLM2]
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; give one of {', '.join(known)}, a model folder, a run folder or a hub name"
