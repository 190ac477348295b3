"""Antiphase: noise-cancelling (differential) attention for PyTorch.

Names are resolved on first use, so that `import antiphase` costs next to nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from antiphase.attention import (
        DiffV1,
        DiffV2,
        FixedNoise,
        Gated,
        Grouped,
        LowDimNoise,
        LowRankNoise,
        SignedMask,
        Sink,
        Standard,
        TopK,
    )
    from antiphase.models import (
        AntiphaseConfig,
        AntiphaseForCausalLM,
        AntiphaseForSequenceClassification,
        AntiphaseModel,
        preset,
    )
    from antiphase.models.accelerate import accelerate
    from antiphase.ops import attention_maps, backend_for, diff_attention
    from antiphase.pretrained import DexConfig, UnchainedModel, fold, to_differential, unchain
    from antiphase.tasks import Language, task
    from antiphase.training import Recipe, load_recipe, resume, train

__version__ = "0.1.0"

_HOMES = {
    "AntiphaseConfig": "antiphase.models",
    "AntiphaseForCausalLM": "antiphase.models",
    "AntiphaseForSequenceClassification": "antiphase.models",
    "AntiphaseModel": "antiphase.models",
    "Language": "antiphase.tasks",
    "Recipe": "antiphase.training",
    "load_recipe": "antiphase.training",
    "resume": "antiphase.training",
    "task": "antiphase.tasks",
    "train": "antiphase.training",
    "DexConfig": "antiphase.pretrained",
    "UnchainedModel": "antiphase.pretrained",
    "fold": "antiphase.pretrained",
    "to_differential": "antiphase.pretrained",
    "unchain": "antiphase.pretrained",
    "DiffV1": "antiphase.attention",
    "DiffV2": "antiphase.attention",
    "FixedNoise": "antiphase.attention",
    "Gated": "antiphase.attention",
    "Grouped": "antiphase.attention",
    "LowDimNoise": "antiphase.attention",
    "LowRankNoise": "antiphase.attention",
    "SignedMask": "antiphase.attention",
    "Sink": "antiphase.attention",
    "Standard": "antiphase.attention",
    "TopK": "antiphase.attention",
    "accelerate": "antiphase.models.accelerate",
    "attention_maps": "antiphase.ops",
    "backend_for": "antiphase.ops",
    "diff_attention": "antiphase.ops",
    "preset": "antiphase.models",
}

__all__ = [
    "AntiphaseConfig",
    "AntiphaseForCausalLM",
    "AntiphaseForSequenceClassification",
    "AntiphaseModel",
    "DexConfig",
    "DiffV1",
    "DiffV2",
    "FixedNoise",
    "Gated",
    "Grouped",
    "Language",
    "LowDimNoise",
    "LowRankNoise",
    "Recipe",
    "SignedMask",
    "Sink",
    "Standard",
    "TopK",
    "UnchainedModel",
    "__version__",
    "accelerate",
    "attention_maps",
    "backend_for",
    "diff_attention",
    "fold",
    "load_recipe",
    "preset",
    "resume",
    "task",
    "to_differential",
    "train",
    "unchain",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
