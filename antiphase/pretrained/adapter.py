"""A pretrained model with DEX inside: use it like the model itself, save the small part only.

Files and verbs are PEFT's (`adapter_config.json`, `adapter_model.safetensors`), though the method
is not among PEFT's own, so PEFT does not load it.
"""

import json
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from antiphase import __version__
from antiphase.pretrained.dex import DexConfig, DexOutput, attach, detach, operators, set_step
from antiphase.pretrained.structure import attention_parts, trainable

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."  # as PEFT names an adapter's tensors
KIND = "DEX"


class UnchainedModel(nn.Module):
    """The model and its adapter; whatever is not here is the model's own."""

    def __init__(
        self, base_model: PreTrainedModel, config: DexConfig, calibration: Tensor | None = None
    ) -> None:
        super().__init__()
        attention_parts(base_model)  # for the refusals
        self._made_for = identity(base_model)
        heads = attach(base_model, config, calibration)
        self.base_model = base_model
        self.dex_config = DexConfig(**{**asdict(config), "heads": heads})  # as it turned out
        self._clock: list[int] = []  # versions of a trained tensor while the step stays 0

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the model returns."""
        if self.training and torch.is_grad_enabled():
            self._watch_the_step()
        return self.base_model(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("base_model"), name)

    @property
    def step(self) -> int:
        """Return the optimiser steps that lam(t) counts."""
        return int(self._operators()[0].lam.step)

    @step.setter
    def step(self, value: int) -> None:
        if value < 0:
            raise ValueError(f"step: got {value}, expected 0 or more")
        set_step(self, value)

    def _operators(self) -> list[DexOutput]:
        found = list(operators(self.base_model).values())
        if not found:
            raise ValueError("this model was folded; its adapter is no more")
        return found

    def _watch_the_step(self) -> None:
        """Warn once if the optimiser goes on while nobody counts: lam would stay 0 for good."""
        first = self._operators()[0]
        if len(self._clock) > 2 or int(first.lam.step):
            return
        version = first.W_D._version
        if not self._clock or self._clock[-1] != version:
            self._clock.append(version)
        if len(self._clock) > 2:
            warnings.warn(
                "DEX: the optimiser has made steps and model.step is still 0, so lam stays 0; set "
                "model.step in each, or use antiphase.training.SmallPartTrainer",
                stacklevel=3,
            )

    def small_part(self) -> dict[str, Tensor]:
        """Return everything that is not the base model's: what was trained, and the operations."""
        self._operators()
        state = self.base_model.state_dict()
        names = set(trainable(self.base_model))
        for place in operators(self.base_model):
            attention = place.rpartition(".")[0]
            own = [f"{place}.W_D", f"{place}.lam.learn"]
            if self.dex_config.train == "kvo":
                own += [f"{attention}.k_proj.", f"{attention}.v_proj.", f"{place}.base_layer."]
            names |= {name for name in state if name.startswith(tuple(own))}
        return {PREFIX + name: state[name].contiguous() for name in sorted(names)}

    def print_trainable_parameters(self) -> None:
        """Print how much is trained."""
        few = sum(p.numel() for p in trainable(self.base_model).values())
        every = self.base_model.num_parameters()
        print(f"trainable: {few:,} of {every:,} ({few / every:.2%})")

    def save_pretrained(self, folder: str | Path, **_: Any) -> None:
        """Write the adapter, into a folder of its own."""
        folder = Path(folder)
        AdapterConfig.refuse_other(folder)
        folder.mkdir(parents=True, exist_ok=True)
        about = {
            "peft_type": KIND,
            "base_model_name_or_path": getattr(self.base_model.config, "_name_or_path", "") or None,
            "base": self._made_for,
            "antiphase_version": __version__,
            "step": self.step,
            "dex": asdict(self.dex_config),
        }
        save_file(self.small_part(), folder / WEIGHTS, metadata={"format": "pt"})
        (folder / CONFIG).write_text(json.dumps(about, indent=1), encoding="utf-8")
        # so that transformers' Auto classes stop here, and not in PEFT's list of methods
        AdapterConfig.announce(folder)

    def push_to_hub(self, *_: Any, **__: Any) -> None:
        """Refuse: the base model would be pushed, in a form that nobody can load."""
        raise ValueError(
            "push the adapter's folder (save_pretrained, then huggingface_hub.upload_folder), or "
            "the folded model (fold(model).push_to_hub)"
        )

    @classmethod
    def from_pretrained(cls, base_model: PreTrainedModel, folder: str | Path) -> "UnchainedModel":
        """Put a saved adapter into its base model, which is not touched if it does not fit."""
        about, state = _read(Path(folder))
        try:
            config, step, made_for = DexConfig(**about["dex"]), int(about["step"]), about["base"]
            if isinstance(config.heads, str):
                raise ValueError(f"heads: got {config.heads!r}, expected lists")
            _refuse_other_base(base_model, state, made_for, config)
        except (KeyError, TypeError) as error:
            raise ValueError(f"{Path(folder) / CONFIG}: is no DEX adapter's ({error})") from error
        model = cls(base_model, config)
        own = base_model.state_dict()
        with torch.no_grad():
            for name, t in state.items():
                own[name.removeprefix(PREFIX)].copy_(t)
        model.step = step
        return model

    def merge_and_unload(self) -> PreTrainedModel:
        """Return the plain model: PEFT's word for `fold`."""
        return fold(self)


def unchain(
    model: PreTrainedModel, config: DexConfig | None = None, *, calibration: Tensor | None = None
) -> UnchainedModel:
    """Return the model with DEX inside, in place; its logits are the same until it is trained.

    `calibration`: token ids [n, T] of texts on which heads are selected.
    """
    return UnchainedModel(model, config or DexConfig(), calibration)


def fold(model: Any) -> PreTrainedModel:
    """Return the plain model of its own class, with the operations inside its W_O.

    In place: the unchained model is not to be used any more.
    """
    inner = getattr(model, "_orig_mod", model)  # of torch.compile
    inner = inner.base_model if isinstance(inner, UnchainedModel) else inner
    if not operators(inner):
        raise ValueError(f"{type(inner).__name__}: has nothing to fold (it is not unchained)")
    detach(inner)
    return inner


def identity(model: PreTrainedModel) -> dict[str, Any]:
    """Return what tells a base model from another: class, sizes, and a few weights."""
    config = model.config.get_text_config()
    sizes = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    first = next(t for name, t in model.state_dict().items() if name.endswith("q_proj.weight"))
    return {
        "class": type(model).__name__,
        **{name: getattr(config, name, None) for name in sizes},
        "q_proj": [round(float(x), 4) for x in first.flatten()[:8]],
    }


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        about = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        state = load_file(folder / WEIGHTS)
    except (OSError, ValueError, SafetensorError) as error:
        raise ValueError(f"{folder}: holds no adapter that can be read ({error})") from error
    if not isinstance(about, dict) or about.get("peft_type") != KIND:
        kind = about.get("peft_type") if isinstance(about, dict) else None
        raise ValueError(f"{folder}: holds a {kind} adapter, not {KIND}; PEFT may load it")
    return about, state


def _refuse_other_base(
    model: PreTrainedModel, state: dict[str, Tensor], made_for: dict[str, Any], config: DexConfig
) -> None:
    """Compare everything the adapter holds with the model, before that is touched."""
    parts, kind = attention_parts(model), type(model).__name__
    own = {PREFIX + name: tuple(t.shape) for name, t in model.state_dict().items()}
    needed = set()
    for part in parts:
        place = f"{PREFIX}{part.name}.o_proj"
        mine = {f"{place}.W_D": (part.head_dim, part.head_dim), f"{place}.lam.learn": ()}
        own |= mine
        needed |= set(mine)
        if config.train == "kvo":
            needed |= {f"{PREFIX}{part.name}.{p}_proj.weight" for p in "kv"}
            needed.add(f"{place}.base_layer.weight")
    for name, t in state.items():
        here = own.get(name.replace(".o_proj.base_layer.", ".o_proj."), "no such weight")
        if here != tuple(t.shape):
            raise ValueError(
                f"adapter: its {name.removeprefix(PREFIX)} has shape {tuple(t.shape)} (of a "
                f"{made_for['class']}), this {kind} has {here}"
            )
    for name, here in identity(model).items():
        there = made_for[name]
        near = name == "q_proj" and np.allclose(here, there, rtol=0.02, atol=2e-3)
        if here != there and not near:
            raise ValueError(f"adapter: was made for a base whose {name} is {there}, here {here}")
    if lacking := sorted(needed - set(state)):
        raise ValueError(
            f"adapter: lacks {lacking[0].removeprefix(PREFIX)} and {len(lacking) - 1} more"
        )


class AdapterConfig(PreTrainedConfig):
    """What an adapter's folder says to transformers: that it is no model by itself."""

    model_type = "antiphase-dex-adapter"

    @classmethod
    def refuse_other(cls, folder: Path) -> None:
        """Refuse a folder that holds a model."""
        path = folder / "config.json"
        if path.is_file() and cls.model_type not in path.read_text(encoding="utf-8"):
            raise ValueError(
                f"{folder}: holds a model's config.json; an adapter needs a folder of its own"
            )

    @classmethod
    def announce(cls, folder: Path) -> None:
        """Write the few words."""
        words = {"model_type": cls.model_type, "transformers_version": None}
        (folder / "config.json").write_text(json.dumps(words), encoding="utf-8")

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Refuse, and say how an adapter is loaded."""
        raise ValueError(
            "this folder holds a DEX adapter, not a model: load its base model, then "
            "antiphase.pretrained.UnchainedModel.from_pretrained(base, folder)"
        )


AutoConfig.register(AdapterConfig.model_type, AdapterConfig)
