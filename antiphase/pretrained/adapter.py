"""A pretrained model with DEX inside: used like the model itself, saved as a small adapter.

Files and verbs are PEFT's (`adapter_config.json`, `adapter_model.safetensors`). PEFT itself does
not load the adapter, since DEX is not among its methods.
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
from antiphase.pretrained.dex import DexOutput, attach, detach, operators, set_step
from antiphase.pretrained.dex_config import DexConfig
from antiphase.pretrained.structure import attention_parts, trainable

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."  # as PEFT names an adapter's tensors
KIND = "DEX"


class UnchainedModel(nn.Module):
    """A model with DEX inside; every attribute that is not defined here is the model's own.

    Args:
        base_model: a Hugging Face model whose attention layers have q_proj, k_proj, v_proj and
            o_proj; changed in place.
        config: the options of DEX.
        calibration: token ids [n, T] on which heads are selected; not needed for `heads="all"` or a
            list of heads.
    """

    def __init__(
        self, base_model: PreTrainedModel, config: DexConfig, calibration: Tensor | None = None
    ) -> None:
        super().__init__()
        attention_parts(base_model)  # raises for a model that cannot be unchained
        self._base_identity = identity(base_model)
        heads = attach(base_model, config, calibration)
        self.base_model = base_model
        self.dex_config = DexConfig(**{**asdict(config), "heads": heads})  # as selected
        self._versions: list[int] = []  # of a trained tensor, while the step is still 0

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the model's output."""
        if self.training and torch.is_grad_enabled():
            self._warn_unless_steps_are_counted()
        return self.base_model(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("base_model"), name)

    @property
    def step(self) -> int:
        """Return the number of optimiser steps on which lam(t) depends."""
        return int(self._operators()[0].lam.step)

    @step.setter
    def step(self, value: int) -> None:
        if value < 0:
            raise ValueError(f"step: got {value}, expected 0 or more")
        set_step(self, value)

    @property
    def lambdas(self) -> list[float]:
        """Return lam at the current step, per layer."""
        return [float(operator.lam.value().detach()) for operator in self._operators()]

    def _operators(self) -> list[DexOutput]:
        found = list(operators(self.base_model).values())
        if not found:
            raise ValueError("this model was folded and has no adapter any more")
        return found

    def _warn_unless_steps_are_counted(self) -> None:
        """Warn once if the optimiser makes steps while `step` stays 0: lam would never grow."""
        first = self._operators()[0]
        if len(self._versions) > 2 or int(first.lam.step) or first.lam.form == "one":
            return
        version = first.W_D._version
        if not self._versions or self._versions[-1] != version:
            self._versions.append(version)
        if len(self._versions) > 2:
            warnings.warn(
                "DEX: the optimiser has made steps and model.step is still 0, so lam stays 0; set "
                "model.step in each, or use antiphase.training.AdapterTrainer",
                stacklevel=3,
            )

    def adapter_state(self) -> dict[str, Tensor]:
        """Return the tensors that differ from the base model's: the trained ones and DEX's own."""
        self._operators()
        state = self.base_model.state_dict()
        names = set(trainable(self.base_model))
        for name in operators(self.base_model):
            attention = name.rpartition(".")[0]
            own = [f"{name}.W_D", f"{name}.lam.learn"]
            where = {"o_proj": f"{name}.base_layer."}
            own += [where.get(p, f"{attention}.{p}.") for p in self.dex_config.trained_projections]
            names |= {key for key in state if key.startswith(tuple(own))}
        return {PREFIX + name: state[name].contiguous() for name in sorted(names)}

    def print_trainable_parameters(self) -> None:
        """Print the number of trained parameters and their fraction."""
        trained = sum(p.numel() for p in trainable(self.base_model).values())
        total = self.base_model.num_parameters()
        print(f"trainable: {trained:,} of {total:,} ({trained / total:.2%})")

    def save_pretrained(self, folder: str | Path, **_: Any) -> None:
        """Write the adapter into a folder of its own.

        Raises:
            ValueError: the folder holds a model.
        """
        folder = Path(folder)
        AdapterConfig.reject_model_folder(folder)
        folder.mkdir(parents=True, exist_ok=True)
        about = {
            "peft_type": KIND,
            "base_model_name_or_path": getattr(self.base_model.config, "_name_or_path", "") or None,
            "base": self._base_identity,
            "antiphase_version": __version__,
            "step": self.step,
            "lam": self.lambdas,  # per layer, for readers of the file
            "dex": asdict(self.dex_config),
        }
        save_file(self.adapter_state(), folder / WEIGHTS, metadata={"format": "pt"})
        (folder / CONFIG).write_text(json.dumps(about, indent=1), encoding="utf-8")
        # so that transformers' Auto classes stop here, and not in PEFT's list of methods
        AdapterConfig.write(folder)

    def push_to_hub(self, *_: Any, **__: Any) -> None:
        """Raise: the base model would be pushed, in a form that cannot be loaded."""
        raise ValueError(
            "push the adapter's folder (save_pretrained, then huggingface_hub.upload_folder), or "
            "the folded model (fold(model).push_to_hub)"
        )

    @classmethod
    def from_pretrained(cls, base_model: PreTrainedModel, folder: str | Path) -> "UnchainedModel":
        """Load a saved adapter into its base model.

        Args:
            base_model: the model that the adapter was trained on; changed in place, but not if the
                adapter does not fit.
            folder: of the adapter.

        Raises:
            ValueError: the folder holds no DEX adapter, or one of another base model.
        """
        about, state = _read(Path(folder))
        try:
            config, step = DexConfig(**_current_options(about["dex"])), int(about["step"])
            if isinstance(config.heads, str):
                raise ValueError(f"heads: got {config.heads!r}, expected lists")
            _reject_other_base(base_model, state, about["base"], config)
        except (KeyError, TypeError) as error:
            raise ValueError(f"{Path(folder) / CONFIG}: is no DEX adapter's ({error})") from error
        model = cls(base_model, config)
        own = base_model.state_dict()
        with torch.no_grad():
            for name, saved in state.items():
                own[name.removeprefix(PREFIX)].copy_(saved)
        model.step = step
        return model

    def merge_and_unload(self) -> PreTrainedModel:
        """Return the plain model: PEFT's name for `fold`."""
        return fold(self)


def unchain(
    model: PreTrainedModel, config: DexConfig | None = None, *, calibration: Tensor | None = None
) -> UnchainedModel:
    """Put DEX into a model, in place; its logits are the same until it is trained.

    Args:
        model: a Hugging Face model whose attention layers have q_proj, k_proj, v_proj and o_proj.
        config: the options of DEX.
        calibration: token ids [n, T] on which heads are selected by entropy or importance.

    Returns:
        The model with DEX inside.

    Raises:
        ValueError: the model cannot be unchained, or calibration is missing; says why.
    """
    return UnchainedModel(model, config or DexConfig(), calibration)


def fold(model: Any) -> PreTrainedModel:
    """Fold DEX into W_O, in place: the unchained model must not be used afterwards.

    Args:
        model: an unchained model, its base model, or either of them compiled.

    Returns:
        The plain model of its own class, with the same function.

    Raises:
        ValueError: the model is not unchained.
    """
    inner = getattr(model, "_orig_mod", model)  # of torch.compile
    inner = inner.base_model if isinstance(inner, UnchainedModel) else inner
    if not operators(inner):
        raise ValueError(f"{type(inner).__name__}: has nothing to fold (it is not unchained)")
    detach(inner)
    return inner


def identity(model: PreTrainedModel) -> dict[str, Any]:
    """Return what distinguishes a base model from others: class, sizes and a few weights."""
    config = model.config.get_text_config()
    sizes = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    first = next(w for name, w in model.state_dict().items() if name.endswith("q_proj.weight"))
    return {
        "class": type(model).__name__,
        **{name: getattr(config, name, None) for name in sizes},
        "q_proj": [round(float(x), 4) for x in first.flatten()[:8]],
    }


def _current_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return an adapter's options; earlier files call `fraction` `share`, and have a `sign`."""
    current = {{"share": "fraction"}.get(name, name): value for name, value in options.items()}
    if (sign := current.pop("sign", "-")) != "-":
        raise ValueError(
            f"sign: got {sign!r}, an option that no longer exists; negate every W_D of the "
            "adapter and set '-', which is the same function"
        )
    return current


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


def _reject_other_base(
    model: PreTrainedModel, state: dict[str, Tensor], base: dict[str, Any], config: DexConfig
) -> None:
    """Compare everything the adapter holds with the model, before the model is changed."""
    parts, kind = attention_parts(model), type(model).__name__
    shapes = {PREFIX + name: tuple(w.shape) for name, w in model.state_dict().items()}
    needed = set()
    for part in parts:
        o_proj = f"{PREFIX}{part.name}.o_proj"
        added = {f"{o_proj}.W_D": (part.head_dim, part.head_dim), f"{o_proj}.lam.learn": ()}
        shapes |= added
        needed |= set(added)
        where = {"o_proj": f"{o_proj}.base_layer.weight"}
        needed |= {
            where.get(p, f"{PREFIX}{part.name}.{p}.weight") for p in config.trained_projections
        }
    for name, saved in state.items():
        here = shapes.get(name.replace(".o_proj.base_layer.", ".o_proj."), "no such weight")
        if here != tuple(saved.shape):
            raise ValueError(
                f"adapter: its {name.removeprefix(PREFIX)} has shape {tuple(saved.shape)} (of a "
                f"{base['class']}), this {kind} has {here}"
            )
    for name, here in identity(model).items():
        there = base[name]
        near = name == "q_proj" and np.allclose(here, there, rtol=0.02, atol=2e-3)
        if here != there and not near:
            raise ValueError(f"adapter: was made for a base whose {name} is {there}, here {here}")
    if lacking := sorted(needed - set(state)):
        raise ValueError(
            f"adapter: lacks {lacking[0].removeprefix(PREFIX)} and {len(lacking) - 1} more"
        )


class AdapterConfig(PreTrainedConfig):
    """The config.json of an adapter's folder: tells transformers that this is no model."""

    model_type = "antiphase-dex-adapter"

    @classmethod
    def reject_model_folder(cls, folder: Path) -> None:
        """Raise if the folder holds a model's config.json."""
        path = folder / "config.json"
        if path.is_file() and cls.model_type not in path.read_text(encoding="utf-8"):
            raise ValueError(
                f"{folder}: holds a model's config.json; an adapter needs a folder of its own"
            )

    @classmethod
    def write(cls, folder: Path) -> None:
        """Write config.json."""
        fields = {"model_type": cls.model_type, "transformers_version": None}
        (folder / "config.json").write_text(json.dumps(fields), encoding="utf-8")

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Raise, and say how an adapter is loaded."""
        raise ValueError(
            "this folder holds a DEX adapter, not a model: load its base model, then "
            "antiphase.pretrained.UnchainedModel.from_pretrained(base, folder)"
        )


AutoConfig.register(AdapterConfig.model_type, AdapterConfig)
