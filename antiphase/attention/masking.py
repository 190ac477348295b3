"""Which keys a query attends to, and what else shapes a map: one argument from layer to op."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from antiphase.ops import apply_map, visible_keys


@dataclass(frozen=True)
class Masking:
    """The optional arguments of the ops in one call of a layer.

    `Attention.masking` makes one, with the layer's own window and soft-cap.
    """

    causal: bool = False  # aligned to the last key
    mask: Tensor | None = None  # [B | 1, h | 1, Tq | 1, Tk], boolean (True: attend) or additive
    documents: Tensor | None = None  # [B | 1, Tk], the document id of every key
    window: int | None = None
    keep_first: int = 0
    softcap: float | None = None
    dropout: float = 0.0  # of the map that is applied to V; the maps that are returned have none

    @property
    def of_maps(self) -> dict[str, Any]:
        """Return the arguments of `attention_map` and `attention_maps`."""
        return {**self.visibility, "softcap": self.softcap}

    @property
    def of_output(self) -> dict[str, Any]:
        """Return the arguments of `attention` and `diff_attention`."""
        return {**self.of_maps, "dropout": self.dropout}

    @property
    def visibility(self) -> dict[str, Any]:
        """Return the arguments that say which keys a query attends to."""
        return {
            "causal": self.causal,
            "mask": self.mask,
            "documents": self.documents,
            "window": self.window,
            "keep_first": self.keep_first,
        }

    def visible(self, q: Tensor, k: Tensor) -> Tensor | None:
        """Return which keys each query attends to, as `antiphase.ops.visible_keys`."""
        return visible_keys(q, k, **self.visibility)

    def apply(self, A: Tensor, v: Tensor) -> Tensor:
        """Return a materialised map A [B, h, Tq, Tk], after dropout, applied to V."""
        return apply_map(A, v, dropout=self.dropout)


def four_dimensions(mask: Tensor, B: int, Tk: int) -> Tensor:
    """Return a mask with four dimensions; raise for one that could mean two things."""
    boolean = mask.dtype == torch.bool
    if not boolean and not mask.is_floating_point():
        raise ValueError(f"mask: got {mask.dtype}, expected bool (True: attend) or additive floats")
    if mask.dim() == 2 and boolean and mask.shape == (B, Tk):
        return mask[:, None, None, :]
    if mask.dim() != 4:
        raise ValueError(
            f"mask: got {mask.dtype} of shape {tuple(mask.shape)}, expected bool [B, Tk] = "
            f"{[B, Tk]}, or 4 dimensions that broadcast to [B, heads, T, Tk]"
        )
    return mask
