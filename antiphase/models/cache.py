"""One layer's view of a transformers cache, as the mechanisms see it."""

from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache


class LayerCache:
    """Keys, values and, for some mechanisms, a running state of one layer."""

    def __init__(self, cache: Cache, layer: int, *, first: bool) -> None:
        self.cache, self.layer = cache, layer
        self.first = first and cache.is_compileable

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add keys and values [B, heads, T, width]; return all there are now."""
        T = k.shape[2]
        k, v = self.cache.update(k, v, self.layer)
        if self.first:  # a static cache: what lies behind its first tokens is not written yet
            k, v = k[:, :, :T], v[:, :, :T]
        return k, v

    def state(self) -> Tensor | None:
        """Return the running state stored last, None at the start."""
        layer = self._running_layer()
        started = layer.is_recurrent_states_initialized[0]
        return layer.recurrent_states[0] if started else None

    def store(self, state: Tensor) -> None:
        """Keep a running state of constant size."""
        self._running_layer()
        self.cache.update_recurrent_state(state, self.layer)

    def _running_layer(self) -> Any:
        layer = self.cache.layers[self.layer]
        if not hasattr(layer, "recurrent_states"):
            raise ValueError(
                f"past_key_values: {type(self.cache).__name__} has no room for this mechanism's "
                "running state; make it with DynamicCache(config=model.config)"
            )
        return layer
