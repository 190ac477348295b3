"""The options of DEX, validated. Imports no torch, so that commands can list and check them."""

import math
from dataclasses import dataclass
from typing import Literal, get_type_hints

from antiphase.options import fitted

SELECTIONS = ("entropy", "importance", "all")


@dataclass(frozen=True)
class DexConfig:
    """Which heads DEX changes, how lam grows, and what is trained.

    Attributes:
        heads: "entropy" (per layer, the `fraction` of heads with the highest attention entropy on
            calibration sequences), "importance" (the `fraction` whose output matters least to the
            loss there), "all", or a list of head indices for each layer.
        fraction: of each layer's heads, between 0 and 1.
        anneal: number of optimiser steps T' over which lam passes from `lam_init` to the learned
            value.
        lam_init: "depth" for V1's value by depth, or a number.
        train: "kvo" trains W_K, W_V and W_O with the operation, "adapter" the operation alone.
    """

    heads: str | list[list[int]] = "entropy"
    fraction: float = 0.5
    anneal: int = 100
    lam_init: Literal["depth"] | float = "depth"
    train: Literal["kvo", "adapter"] = "kvo"

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(DexConfig).items():
            object.__setattr__(self, name, fitted(name, getattr(self, name), hint))
        if isinstance(self.heads, str) and self.heads not in SELECTIONS:
            raise ValueError(
                f"heads: got {self.heads!r}, allowed are {', '.join(SELECTIONS)}, or a list of "
                "heads for each layer"
            )
        if not 0 < self.fraction <= 1:
            raise ValueError(f"fraction: got {self.fraction}, expected more than 0 and at most 1")
        if self.anneal < 1:
            raise ValueError(
                f"anneal: got {self.anneal}, expected at least 1 step; without it lam and W_D "
                "would never move"
            )
        if self.lam_init != "depth" and not math.isfinite(self.lam_init):
            raise ValueError(f"lam_init: got {self.lam_init}, expected 'depth' or a number")
