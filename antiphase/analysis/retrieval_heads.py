"""Retrieval heads: those that attend to the answer, chosen by a fixed rule.

A head retrieves if its mass on R exceeds half the largest of the model. The mass is the fraction of
|A| on R, where A is the map that is applied to V, as a mean over sequences and rows. Heads are
chosen on validation examples and then measured on others, so that the choice cannot favour what is
measured. A layer may have none.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from antiphase.analysis.capture import CapturedMaps
from antiphase.analysis.ground_truth import GroundTruth
from antiphase.analysis.metrics.allocation import allocation

FRACTION_OF_LARGEST = 0.5


@dataclass(frozen=True)
class RetrievalHeads:
    """The retrieval heads of a model.

    Attributes:
        masses: the mass on R of every head, one tensor [h] per layer.
        uniform: the mass on R of a map that spreads its weight evenly over the visible positions.
            The rule always finds a head; `largest` beside `uniform` tells whether it retrieves.
    """

    masses: list[Tensor]
    uniform: float

    @property
    def largest(self) -> float:
        """Return the largest mass on R of all heads."""
        return max(float(mass.max()) for mass in self.masses)

    @property
    def layers(self) -> list[Tensor]:
        """Return which heads retrieve, one boolean mask [h] per layer."""
        return [mass > FRACTION_OF_LARGEST * self.largest for mass in self.masses]

    def layer_mean(self, values: Tensor, layer: int) -> Tensor | None:
        """Average a metric over the retrieval heads of a layer.

        Args:
            values: the metric of that layer, [B, h] or [B, h, n]. NaN is left out.
            layer: index of the layer.

        Returns:
            One value per sequence, [B]; None if no head of the layer retrieves.
        """
        chosen = self.layers[layer].to(values.device)
        if not bool(chosen.any()):
            return None
        return values[:, chosen].flatten(1).nanmean(1)

    def model_mean(self, values: Sequence[Tensor]) -> Tensor | None:
        """Average a metric over all retrieval heads of the model.

        Args:
            values: the metric of each layer, [B, h] or [B, h, n]. NaN is left out.

        Returns:
            One value per sequence, [B]; None if no head retrieves, which means that no head has any
            mass on R.

        Raises:
            ValueError: there are values for another number of layers.
        """
        if len(values) != len(self.masses):
            raise ValueError(
                f"model_mean: got values of {len(values)} layers, expected {len(self.masses)}"
            )
        chosen = [
            v[:, mask.to(v.device)].flatten(1) for v, mask in zip(values, self.layers, strict=True)
        ]
        together = torch.cat(chosen, dim=1)
        return together.nanmean(1) if together.shape[1] else None


def retrieval_heads(maps: CapturedMaps, truth: GroundTruth) -> RetrievalHeads:
    """Choose the retrieval heads of a model.

    Args:
        maps: captured on validation examples, at the rows of `truth`.
        truth: where their answers are. Rows without an answer are left out.

    Returns:
        The mass on R of every head, and which heads retrieve.

    Raises:
        ValueError: no row has an answer.
    """
    answered = truth.relevant.any(-1)  # [B, n]
    if not bool(answered.any()):
        raise ValueError(
            "retrieval_heads: no row has relevant positions; choose the heads on a synthetic task, "
            "whose answers are known"
        )
    masses = [
        allocation(layer.difference, truth)["relevant"].transpose(1, 2)[answered].mean(0)
        for layer in maps.layers
    ]
    uniform = truth.relevant.sum(-1).double() / truth.visible.sum(-1)
    return RetrievalHeads(masses, float(uniform[answered].mean()))
