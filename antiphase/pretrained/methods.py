"""Ways to train a pretrained model: DEX, its controls, and a differential model.

A method is a transformation of the model: before training it adds, converts or freezes parameters,
and afterwards it gives the plain model back. It knows nothing of data, optimiser or run. A new
method is a function and a line in METHODS. The functions import late, so that listing is cheap.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from antiphase.options import build, nearest
from antiphase.pretrained.dex_config import DexConfig

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, TrainerCallback

LORA_TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj"]


@dataclass(frozen=True)
class NoOptions:
    """For a method that has none."""


@dataclass(frozen=True)
class LoraOptions:
    """The rank of the low-rank changes to W_Q, W_K, W_V and W_O; alpha is twice the rank."""

    rank: int = 16

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"rank: got {self.rank}, expected at least 1")


@dataclass(frozen=True)
class Tuned:
    """A model that is ready to be trained.

    Attributes:
        model: what the Trainer trains; parameters that are not trained are frozen.
        fold: returns the plain model; the tuned one is used up.
        adapter: saves what was added (`save_pretrained(folder)`); None if nothing was.
        callbacks: for the Trainer, such as DEX's counter of optimiser steps.
    """

    model: Any
    fold: Callable[[], Any]
    adapter: Any | None = None
    callbacks: "Sequence[TrainerCallback]" = ()


def _dex(model: "PreTrainedModel", options: DexConfig, calibration: "Tensor | None") -> Tuned:
    from antiphase.pretrained.adapter import fold, unchain
    from antiphase.pretrained.dex import StepCounter

    unchained = unchain(model, options, calibration=calibration)
    return Tuned(model, lambda: fold(unchained), unchained, [StepCounter()])


def _projections_only(
    *projections: str,
) -> "Callable[[PreTrainedModel, NoOptions, Tensor | None], Tuned]":
    def prepare(
        model: "PreTrainedModel", options: NoOptions, calibration: "Tensor | None"
    ) -> Tuned:
        from antiphase.pretrained.structure import attention_parts, train_only

        train_only(model, attention_parts(model), projections)
        return Tuned(model, lambda: model)

    return prepare


def _lora(model: "PreTrainedModel", options: LoraOptions, calibration: "Tensor | None") -> Tuned:
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise ValueError("lora needs peft; pip install 'antiphase[pretrained]'") from error
    config = LoraConfig(
        r=options.rank,
        lora_alpha=2 * options.rank,
        target_modules=LORA_TARGETS,
        task_type="CAUSAL_LM",
    )
    adapter: Any = get_peft_model(model, config)
    return Tuned(adapter.get_base_model(), adapter.merge_and_unload, adapter)


def _full(model: "PreTrainedModel", options: NoOptions, calibration: "Tensor | None") -> Tuned:
    return Tuned(model, lambda: model)


def _v2(model: "PreTrainedModel", options: NoOptions, calibration: "Tensor | None") -> Tuned:
    from antiphase.pretrained.conversion import to_differential

    differential = to_differential(model)
    for name, p in differential.named_parameters():
        p.requires_grad_(".self_attn." in name)
    return Tuned(differential, lambda: differential)


def _anneal_a_tenth(steps: int) -> dict[str, Any]:
    return {"anneal": max(1, steps // 10)}


def _no_defaults(steps: int) -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class Method:
    """One way to train a pretrained model.

    Attributes:
        description: one line for listings and cards.
        prepare: (model, options, calibration) -> Tuned; changes the model in place. `calibration`
            are token ids [n, T], or None.
        Options: dataclass of its options.
        fixed: values of options that make the method what it is.
        defaults: defaults that depend on the number of steps of a run.
    """

    description: str
    prepare: "Callable[[Any, Any, Tensor | None], Tuned]"
    Options: type = NoOptions
    fixed: dict[str, Any] = field(default_factory=dict)
    defaults: Callable[[int], dict[str, Any]] = _no_defaults


_DEX: dict[str, Any] = {"prepare": _dex, "Options": DexConfig, "defaults": _anneal_a_tenth}
METHODS = {
    "dex": Method("O - lam f_D(O) on the selected heads, with W_K, W_V and W_O", **_DEX),
    "adapter-only": Method(
        "DEX with everything but f_D and lam frozen", fixed={"train": "adapter"}, **_DEX
    ),
    "kv-only": Method("W_K and W_V, without the operation", _projections_only("k_proj", "v_proj")),
    "kvo-only": Method(
        "W_K, W_V and W_O, without the operation", _projections_only("k_proj", "v_proj", "o_proj")
    ),
    "lora": Method("low-rank changes (LoRA) to W_Q, W_K, W_V and W_O", _lora, LoraOptions),
    "full": Method("all parameters", _full),
    "v2": Method(
        "a differential model (V2) that starts as the same function; its attention is trained", _v2
    ),
}


def method(name: str) -> Method:
    """Return a method by name.

    Raises:
        ValueError: there is none of that name; lists those there are.
    """
    if name not in METHODS:
        raise ValueError(
            f"method: got {name!r}, allowed are {', '.join(METHODS)}{nearest(name, METHODS)}"
        )
    return METHODS[name]


def method_options(name: str, given: Mapping[str, Any], steps: int) -> Any:
    """Validate the options of a method.

    Args:
        name: of the method.
        given: options by name.
        steps: optimiser steps of the run, on which some defaults depend.

    Returns:
        An instance of the method's `Options`.

    Raises:
        ValueError: an option is unknown, fixed by the method, or of a wrong value.
    """
    found = method(name)
    for option in found.fixed:
        if option in given:
            raise ValueError(
                f"method {name!r} fixes {option}={found.fixed[option]!r}; leave it out, or use "
                "another method"
            )
    values = {**found.defaults(steps), **given, **found.fixed}
    return build(f"method {name!r}", found.Options, values)
