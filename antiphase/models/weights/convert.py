"""Convert a saved model from one layout to another: what `antiphase import-weights` does."""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import DiffLlamaForCausalLM, PreTrainedModel

from antiphase.models.config import AntiphaseConfig
from antiphase.models.modeling import AntiphaseForCausalLM
from antiphase.models.weights.diffllama import SHARED_FIELDS, from_diffllama, to_diffllama
from antiphase.models.weights.official import from_official

LAYOUTS = ("diffllama", "official", "antiphase")


def convert(source: Path, target: Path, layout: str | None = None) -> PreTrainedModel:
    """Read a model folder of any layout, write it in the other one, and return what was written.

    DiffLlama and official weights become Antiphase; Antiphase becomes DiffLlama. The layout is read
    from config.json unless given. A folder that holds something already is not touched.
    """
    config = _config(source)
    layout = layout or _layout(config, source)
    if layout not in LAYOUTS:
        raise ValueError(f"layout: got {layout!r}, allowed are {', '.join(LAYOUTS)}")
    if target.exists() and any(target.iterdir() if target.is_dir() else [target]):
        raise ValueError(f"{target}: exists already; choose an empty folder")
    model: PreTrainedModel
    if layout == "diffllama":
        model = from_diffllama(DiffLlamaForCausalLM.from_pretrained(source))
    elif layout == "official":
        model = from_official(_tensors(source), _official_config(config))
    else:
        model = to_diffllama(AntiphaseForCausalLM.from_pretrained(source))
    model.save_pretrained(target)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        if (source / name).exists():
            (target / name).write_bytes((source / name).read_bytes())
    return model


def _config(source: Path) -> dict[str, Any]:
    path = source / "config.json"
    if not path.is_file():
        raise ValueError(f"{source}: no config.json in it; give the folder of a saved model")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: is not JSON ({error})") from error


def _layout(config: dict[str, Any], source: Path) -> str:
    kind = config.get("model_type")
    if kind in ("diffllama", "antiphase"):
        return str(kind)
    raise ValueError(
        f"{source}: model_type {kind!r} does not say its layout; pass --layout official if its "
        "attention modules are the official ones (out_proj, subln, interleaved RoPE)"
    )


def _official_config(config: dict[str, Any]) -> AntiphaseConfig:
    fields = {
        name: config[name] for name in (*SHARED_FIELDS, "intermediate_size") if name in config
    }
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
