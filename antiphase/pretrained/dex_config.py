"""The options of DEX, validated. Imports no torch, so that commands can list and check them."""

import math
from dataclasses import dataclass
from typing import Literal, get_type_hints

from antiphase.options import fitted

SELECTIONS = ("entropy", "lowest-entropy", "random", "importance", "all")


@dataclass(frozen=True)
class DexConfig:
    """Which heads DEX changes, how lam grows, and what is trained.

    Attributes:
        heads: "entropy" (per layer, the `fraction` of heads with the highest attention entropy on
            calibration sequences), "lowest-entropy" (those with the lowest), "random" (by torch's
            seed), "importance" (the `fraction` whose output matters least to the loss there),
            "all", or a list of head indices for each layer.
        fraction: of each layer's heads, between 0 and 1.
        anneal: number of optimiser steps T' over which lam passes from `lam_init` to the learned
            value.
        lam_init: "depth" for V1's value by depth, or a number.
        lam: "learned" as published; "held" at `lam_init` after annealing; or "one" for O - f_D(O)
            without lam and annealing, a linear adapter whose W_D starts at 0.
        lam_lr_factor: learning rate of lam, as a multiple of the others'. The Trainers of this
            package follow it; in a loop of your own, give lam a parameter group.
        operation_lr_factor: the same of W_D, which is new while the other weights are pretrained.
        zero_start: W_D starts at 0, not at N(0, 0.02²), so that the operation is what it has
            learned. Annealing makes it trainable all the same.
        train: besides the operation: "kvo" W_K, W_V and W_O, "kv" W_K and W_V, "adapter" nothing.
    """

    heads: str | list[list[int]] = "entropy"
    fraction: float = 0.5
    anneal: int = 100
    lam_init: Literal["depth"] | float = "depth"
    lam: Literal["learned", "held", "one"] = "learned"
    lam_lr_factor: float = 1.0
    operation_lr_factor: float = 1.0
    zero_start: bool = False
    train: Literal["kvo", "kv", "adapter"] = "kvo"

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
        for name in ("lam_lr_factor", "operation_lr_factor"):
            if not 0 < (factor := getattr(self, name)) < math.inf:
                raise ValueError(f"{name}: got {factor}, expected a number above 0")
        if self.lam != "learned" and self.lam_lr_factor != 1:
            raise ValueError(
                f"lam_lr_factor: got {self.lam_lr_factor}, but lam is not trained with "
                f"lam={self.lam!r}; leave it out, or set lam='learned'"
            )

    @property
    def trained_projections(self) -> tuple[str, ...]:
        """Return the names of the projections that are trained beside the operation."""
        return {"kvo": ("k_proj", "v_proj", "o_proj"), "kv": ("k_proj", "v_proj"), "adapter": ()}[
            self.train
        ]
