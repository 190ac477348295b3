"""Pretrained models: unchain them with DEX, fold it away, or convert them to differential ones."""

from antiphase.pretrained.dex import DexConfig
from antiphase.pretrained.differential import to_differential
from antiphase.pretrained.trainer import SmallPartTrainer
from antiphase.pretrained.unchained import UnchainedModel, fold, unchain

__all__ = ["DexConfig", "SmallPartTrainer", "UnchainedModel", "fold", "to_differential", "unchain"]
