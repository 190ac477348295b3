"""Antiphase: noise-cancelling (differential) attention for PyTorch.

Names are resolved on first use, so that `import antiphase` costs next to nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from antiphase.ops import attention_maps, backend_for, diff_attention

__version__ = "0.1.0"

_HOMES = {
    "attention_maps": "antiphase.ops",
    "backend_for": "antiphase.ops",
    "diff_attention": "antiphase.ops",
}

__all__ = ["__version__", "attention_maps", "backend_for", "diff_attention"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
