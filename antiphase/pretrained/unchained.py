"""A pretrained model with DEX inside: use it like the model itself, save the small part only.

Files and verbs are PEFT's (`adapter_config.json`, `adapter_model.safetensors`), though the method
is not among PEFT's own, so PEFT does not load it.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from antiphase import __version__
from antiphase.pretrained.dex import DexConfig, attach, detach, operators, set_step
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
        heads = attach(base_model, config, calibration)
        self.base_model = base_model
        self.dex_config = DexConfig(**{**asdict(config), "heads": heads})  # as it turned out

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the model returns."""
        return self.base_model(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("base_model"), name)

    @property
    def step(self) -> int:
        """Return the optimiser steps that lam(t) counts."""
        return int(next(iter(operators(self).values())).lam.step)

    @step.setter
    def step(self, value: int) -> None:
        set_step(self, value)

    def small_part(self) -> dict[str, Tensor]:
        """Return everything that is not the base model's: what was trained, and the operations."""
        names = set(trainable(self.base_model))
        for place in operators(self.base_model):
            names |= {f"{place}.W_D", f"{place}.lam.learn"}
        state = self.base_model.state_dict()
        return {PREFIX + name: state[name].contiguous() for name in sorted(names)}

    def print_trainable_parameters(self) -> None:
        """Print how much is trained."""
        few = sum(p.numel() for p in trainable(self.base_model).values())
        every = self.base_model.num_parameters()
        print(f"trainable: {few:,} of {every:,} ({few / every:.2%})")

    def save_pretrained(self, folder: str | Path, **_: Any) -> None:
        """Write the adapter."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        about = {
            "peft_type": KIND,
            "base_model_name_or_path": getattr(self.base_model.config, "_name_or_path", "") or None,
            "base_model_class": type(self.base_model).__name__,
            "antiphase_version": __version__,
            "step": self.step,
            "dex": asdict(self.dex_config),
        }
        save_file(self.small_part(), folder / WEIGHTS, metadata={"format": "pt"})
        (folder / CONFIG).write_text(json.dumps(about, indent=1), encoding="utf-8")
        # so that transformers' Auto classes stop here, and not in PEFT's list of methods
        AdapterConfig.announce(folder)

    @classmethod
    def from_pretrained(cls, base_model: PreTrainedModel, folder: str | Path) -> "UnchainedModel":
        """Put a saved adapter into its base model."""
        about, state = _read(Path(folder))
        try:
            config = DexConfig(**about["dex"])
            step = int(about["step"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{Path(folder) / CONFIG}: is no DEX adapter's ({error})") from error
        made_for = about.get("base_model_class", "another model")
        _refuse_other_base(base_model, state, made_for, config)
        model = cls(base_model, config)
        wanted = set(model.small_part())
        if wanted != set(state):
            odd = sorted(wanted ^ set(state))
            raise ValueError(
                f"{Path(folder) / WEIGHTS}: {'lacks' if odd[0] in wanted else 'has unknown'} "
                f"{odd[0]} and {len(odd) - 1} more; it was made for {made_for}"
            )
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


def fold(model: UnchainedModel | PreTrainedModel) -> PreTrainedModel:
    """Return the plain model of its own class, with the operations inside its W_O.

    In place: the unchained model is not to be used any more.
    """
    inner = model.base_model if isinstance(model, UnchainedModel) else model
    if not operators(inner):
        raise ValueError(f"{type(inner).__name__}: has nothing to fold (it is not unchained)")
    detach(inner)
    return inner


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
    model: PreTrainedModel, state: dict[str, Tensor], made_for: str, config: DexConfig
) -> None:
    """Compare the shapes of what the adapter holds, before the model is touched."""
    parts, kind = attention_parts(model), type(model).__name__
    if len(parts) != len(config.heads):
        raise ValueError(
            f"adapter: is for {len(config.heads)} layers of a {made_for}, this {kind} has "
            f"{len(parts)}"
        )
    own = {PREFIX + name: tuple(t.shape) for name, t in model.state_dict().items()}
    for part in parts:
        place = f"{PREFIX}{part.name}.o_proj"
        own |= {f"{place}.W_D": (part.head_dim, part.head_dim), f"{place}.lam.learn": ()}
    for name, t in state.items():
        here = own.get(name.replace(".o_proj.base_layer.", ".o_proj."), "no such weight")
        if here != tuple(t.shape):
            raise ValueError(
                f"adapter: its {name.removeprefix(PREFIX)} has shape {tuple(t.shape)} (of a "
                f"{made_for}), this {kind} has {here}"
            )


class AdapterConfig(PreTrainedConfig):
    """What an adapter's folder says to transformers: that it is no model by itself."""

    model_type = "antiphase-dex-adapter"

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
