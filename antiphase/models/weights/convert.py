"""Convert a saved model from one layout to another: what `antiphase import-weights` does."""

import shutil
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import DiffLlamaForCausalLM, PreTrainedModel

from antiphase.models.causal_lm import AntiphaseForCausalLM
from antiphase.models.config import AntiphaseConfig
from antiphase.models.locate import read_config
from antiphase.models.weights.diffllama import SHARED_FIELDS, from_diffllama, to_diffllama
from antiphase.models.weights.official import from_official

LAYOUTS = ("diffllama", "official", "antiphase")
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth")


def convert(source: Path, target: Path, layout: str | None = None) -> PreTrainedModel:
    """Convert a model folder: DiffLlama and official weights to Antiphase, Antiphase to DiffLlama.

    Args:
        source: folder of a saved model.
        target: folder to write; must not exist, or be empty.
        layout: of the source: "diffllama", "official" or "antiphase"; read from its config.json if
            None, which official weights do not allow.

    Returns:
        The model that was written.

    Raises:
        ValueError: weights or config are missing, damaged or of another layout; the target is not
            empty; the model has no equal in the other layout.
    """
    config = _config(source)
    layout = _layout(config, source, layout)
    if target.exists() and any(target.iterdir() if target.is_dir() else [target]):
        raise ValueError(f"{target}: exists already; choose an empty folder")
    model: PreTrainedModel
    if layout == "diffllama":
        model = from_diffllama(_complete(DiffLlamaForCausalLM, source))
    elif layout == "official":
        model = from_official(_tensors(source), _official_config(config))
    else:
        model = to_diffllama(_complete(AntiphaseForCausalLM, source))
    model.save_pretrained(target)
    for path in source.iterdir():  # tokenizer, generation config and others
        written = path.name in ("config.json", "README.md") or path.suffix in _WEIGHTS
        if path.is_file() and not written and not path.name.endswith(".index.json"):
            shutil.copyfile(path, target / path.name)
    return model


def _complete(kind: Any, source: Path) -> Any:
    """Load a model; raise if its weights are damaged or incomplete."""
    try:
        model, found = kind.from_pretrained(source, output_loading_info=True)
    except (SafetensorError, RuntimeError) as error:
        raise ValueError(f"{source}: its weights cannot be read ({error})") from error
    wrong = {what: sorted(names) for what, names in found.items() if names and "keys" in what}
    if wrong:
        raise ValueError(f"{source}: its weights do not make a {kind.__name__}: {wrong}")
    return model


def _config(source: Path) -> dict[str, Any]:
    if not (source / "config.json").is_file():
        raise ValueError(f"{source}: no config.json in it; give the folder of a saved model")
    return read_config(source)


def _layout(config: dict[str, Any], source: Path, requested: str | None) -> str:
    if requested is not None and requested not in LAYOUTS:
        raise ValueError(f"layout: got {requested!r}, allowed are {', '.join(LAYOUTS)}")
    kind = config.get("model_type")
    if kind in ("diffllama", "antiphase"):
        if requested not in (None, kind):
            raise ValueError(f"layout: got {requested!r}, but {source} says that it is {kind!r}")
        return str(kind)
    if requested is None:
        raise ValueError(
            f"{source}: model_type {kind!r} does not say its layout; pass --layout official if its "
            "attention modules are the official ones (out_proj, subln, interleaved RoPE)"
        )
    return requested


def _official_config(config: dict[str, Any]) -> AntiphaseConfig:
    if config.get("hidden_act", "silu") != "silu":
        raise ValueError(f"hidden_act: got {config['hidden_act']!r}; only 'silu' has a counterpart")
    shared = (*SHARED_FIELDS, "intermediate_size", "rope_theta", "rope_scaling")
    fields = {name: config[name] for name in shared if name in config}
    return AntiphaseConfig(attention="diff_v1", match="none", **fields)


def _tensors(source: Path) -> dict[str, Any]:
    files = sorted(source.glob("*.safetensors"))
    if not files:
        raise ValueError(f"{source}: no .safetensors in it")
    tensors: dict[str, Any] = {}
    for file in files:
        try:
            tensors |= load_file(file)
        except SafetensorError as error:
            raise ValueError(f"{file}: cannot be read ({error})") from error
    return tensors
