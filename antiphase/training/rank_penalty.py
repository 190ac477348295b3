"""A penalty on the rank of the noise: the question that the analysis of V1 ends with."""

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from antiphase.attention.heads import Inputs
from antiphase.ops.rank import effective_rank, lower_left

TEXTS = 4  # of a batch, whose maps are written down


@contextlib.contextmanager
def noise_ranks(model: nn.Module) -> Iterator[list[Tensor]]:
    """Collect the mean effective rank of each layer's noise map, with gradients, during a pass."""
    found: list[Tensor] = []

    def look(layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        x = args[0][:TEXTS]
        rotary = {
            w: (c[: len(x)], s[: len(x)]) for w, (c, s) in (kwargs.get("rotary") or {}).items()
        }
        maps = layer.maps(layer.project(Inputs(x, x, rotary, rotary, None)), causal=True, mask=None)
        if "noise" not in maps:
            raise ValueError(f"rank_penalty: {layer.name} has no noise map; set it to 0")
        found.append(effective_rank(lower_left(maps["noise"].float())).mean())

    layers: Any = model.model.attention_layers  # type: ignore[union-attr]
    hooks = [layer.register_forward_pre_hook(look, with_kwargs=True) for layer in layers]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()
