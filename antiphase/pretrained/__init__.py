"""Pretrained models: unchain them with DEX, fold it away, or convert them to differential ones."""

from antiphase.pretrained.adapter import UnchainedModel, fold, unchain
from antiphase.pretrained.conversion import to_differential
from antiphase.pretrained.dex import DexConfig

__all__ = ["DexConfig", "UnchainedModel", "fold", "to_differential", "unchain"]
