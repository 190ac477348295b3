"""Pretrained models: unchain them with DEX, fold it away, or convert them to differential ones.

Names are resolved on first use, so that listing the methods imports neither torch nor transformers.
"""

from typing import TYPE_CHECKING

from antiphase.lazy_imports import lazy_names

if TYPE_CHECKING:
    from antiphase.pretrained.adapter import UnchainedModel, fold, unchain
    from antiphase.pretrained.conversion import to_differential
    from antiphase.pretrained.dex_config import DexConfig
    from antiphase.pretrained.methods import METHODS

__all__ = ["METHODS", "DexConfig", "UnchainedModel", "fold", "to_differential", "unchain"]

__getattr__ = lazy_names(
    __name__,
    {
        "DexConfig": "dex_config",
        "METHODS": "methods",
        "UnchainedModel": "adapter",
        "fold": "adapter",
        "to_differential": "conversion",
        "unchain": "adapter",
    },
)
