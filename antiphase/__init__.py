"""Antiphase: noise-cancelling (differential) attention for PyTorch.

Names are imported on first use, so that `import antiphase` does not load PyTorch.
"""

import importlib
from typing import Any

from antiphase.attention.registry import CLASSES

__version__ = "0.1.0"

_PUBLIC = {  # every public name, by the module that defines it
    "antiphase.attention": CLASSES.values(),
    "antiphase.models": [
        "AntiphaseConfig",
        "AntiphaseForCausalLM",
        "AntiphaseForSequenceClassification",
        "AntiphaseModel",
        "preset",
    ],
    "antiphase.models.accelerate": ["accelerate"],
    "antiphase.ops": ["attention_maps", "backend_for", "diff_attention"],
    "antiphase.pretrained": ["DexConfig", "UnchainedModel", "fold", "to_differential", "unchain"],
    "antiphase.tasks": ["Language", "task"],
    "antiphase.training": ["Recipe", "load_recipe", "resume", "train"],
}
_MODULES = {name: module for module, names in _PUBLIC.items() for name in names}
__all__ = ["__version__", *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
