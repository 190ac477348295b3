"""Pretrained models: unchain them with DEX, fold it away, or convert them to differential ones."""

from typing import TYPE_CHECKING

from antiphase.lazy_imports import lazy_names

if TYPE_CHECKING:
    from antiphase.pretrained.adapter import UnchainedModel, fold, unchain
    from antiphase.pretrained.conversion import to_differential
    from antiphase.pretrained.dex import DexConfig

__all__ = ["DexConfig", "UnchainedModel", "fold", "to_differential", "unchain"]

__getattr__ = lazy_names(
    __name__,
    {
        "DexConfig": "dex",
        "UnchainedModel": "adapter",
        "fold": "adapter",
        "to_differential": "conversion",
        "unchain": "adapter",
    },
)
