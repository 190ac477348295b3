"""Pretrained models: unchain them with DEX, fold it away, or convert them to differential ones.

Names are resolved on first use, so that listing the methods imports neither torch nor transformers.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from antiphase.pretrained.adapter import UnchainedModel, fold, unchain
    from antiphase.pretrained.conversion import to_differential
    from antiphase.pretrained.dex_config import DexConfig
    from antiphase.pretrained.methods import METHODS

_HOMES = {
    "DexConfig": "dex_config",
    "METHODS": "methods",
    "UnchainedModel": "adapter",
    "fold": "adapter",
    "to_differential": "conversion",
    "unchain": "adapter",
}

__all__ = ["METHODS", "DexConfig", "UnchainedModel", "fold", "to_differential", "unchain"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
