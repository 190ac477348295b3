"""A penalty on the effective rank of the noise map, which the analysis of V1 proposes."""

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from antiphase.attention.heads import Inputs
from antiphase.ops.rank import effective_rank, lower_left

SEQUENCES = 4  # of a batch, whose attention maps are computed in full


@contextlib.contextmanager
def noise_ranks(model: nn.Module) -> Iterator[list[Tensor]]:
    """Collect the mean effective rank of the noise map per layer during a forward pass.

    Args:
        model: an Antiphase model whose mechanism has a noise map.

    Yields:
        A list that the pass fills with one scalar per layer, with gradients.
    """
    ranks: list[Tensor] = []

    def record(layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        x = args[0][:SEQUENCES]
        rotary = {
            width: (cos[: len(x)], sin[: len(x)])
            for width, (cos, sin) in (kwargs.get("rotary") or {}).items()
        }
        heads = layer.project(Inputs(x, x, rotary, rotary, None))
        maps = layer.maps(heads, layer.masking(causal=True))
        if "noise" not in maps:
            raise ValueError(f"rank_penalty: {layer.name} has no noise map; set it to 0")
        ranks.append(effective_rank(lower_left(maps["noise"].float())).mean())

    layers: Any = model.model.attention_layers  # type: ignore[union-attr]
    hooks = [layer.register_forward_pre_hook(record, with_kwargs=True) for layer in layers]
    try:
        yield ranks
    finally:
        for hook in hooks:
            hook.remove()
