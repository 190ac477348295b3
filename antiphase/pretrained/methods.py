"""Ways to change a pretrained model with a little training: DEX, a differential model, controls."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from antiphase.pretrained.adapter import UnchainedModel, fold, unchain
from antiphase.pretrained.conversion import to_differential
from antiphase.pretrained.dex import DexConfig
from antiphase.pretrained.method_names import CONTROLS, LORA_RANK, METHODS
from antiphase.pretrained.structure import attention_parts, train_only

__all__ = ["CONTROLS", "METHODS", "Tuned", "check", "parameters", "prepare"]

LORA_TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj"]


@dataclass
class Tuned:
    """A model that is ready to be trained, what holds its small part, and how it ends."""

    model: PreTrainedModel  # what runs, and what the Trainer sees
    adapter: Any | None  # saves itself beside the model, if there is one
    finish: Callable[[], PreTrainedModel]  # gives the plain model; the tuned one is used up


def prepare(method: str, model: PreTrainedModel, dex: DexConfig, texts: Tensor) -> Tuned:
    """Return the model as a method trains it; what is not trained is frozen."""
    if method not in METHODS:
        raise ValueError(f"method: got {method!r}, allowed are {', '.join(METHODS)}")
    return _PREPARE[method](model, dex, texts)


def check(method: str, model: PreTrainedModel) -> None:
    """Refuse a model that a method cannot change, before anything is done."""
    if method == "v2":
        to_differential(model)
    else:
        attention_parts(model)


def _dex(model: PreTrainedModel, dex: DexConfig, texts: Tensor) -> Tuned:
    unchained: UnchainedModel = unchain(model, dex, calibration=texts)
    return Tuned(model, unchained, lambda: fold(unchained))


def _plus(model: PreTrainedModel, dex: DexConfig, texts: Tensor) -> Tuned:
    return _dex(model, _with(dex, sign="+"), texts)


def _adapter_only(model: PreTrainedModel, dex: DexConfig, texts: Tensor) -> Tuned:
    return _dex(model, _with(dex, train="adapter"), texts)


def _kvo_only(model: PreTrainedModel, dex: DexConfig, texts: Tensor) -> Tuned:
    train_only(model, attention_parts(model), ("k_proj", "v_proj", "o_proj"))
    return Tuned(model, None, lambda: model)


def _full(model: PreTrainedModel, dex: DexConfig, texts: Tensor) -> Tuned:
    return Tuned(model, None, lambda: model)


def _lora(model: PreTrainedModel, dex: DexConfig, texts: Tensor) -> Tuned:
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise ValueError("lora needs peft; pip install 'antiphase[pretrained]'") from error
    config = LoraConfig(
        r=LORA_RANK, lora_alpha=2 * LORA_RANK, target_modules=LORA_TARGETS, task_type="CAUSAL_LM"
    )
    adapter: Any = get_peft_model(model, config)
    inner: PreTrainedModel = adapter.get_base_model()
    return Tuned(inner, adapter, lambda: adapter.merge_and_unload())


def _v2(model: PreTrainedModel, dex: DexConfig, texts: Tensor) -> Tuned:
    ours = to_differential(model)
    for name, p in ours.named_parameters():
        p.requires_grad_(".self_attn." in name)
    return Tuned(ours, None, lambda: ours)


def _with(dex: DexConfig, **changes: Any) -> DexConfig:
    return DexConfig(**{**vars(dex), **changes})


_PREPARE: dict[str, Callable[[PreTrainedModel, DexConfig, Tensor], Tuned]] = {
    "dex": _dex,
    "plus-sign": _plus,
    "adapter-only": _adapter_only,
    "kvo-only": _kvo_only,
    "lora": _lora,
    "full": _full,
    "v2": _v2,
}


def parameters(model: nn.Module) -> int:
    """Return how many numbers are trained."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)
