"""One layer of a transformers cache, as the mechanisms use it."""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache

from antiphase.models.growing_cache import with_room

_CONSTANTS = "antiphase_constants"  # of a cache: by layer


def forget_constants(cache: Cache) -> None:
    """Drop what the layers stored with `LayerCache.constant`."""
    if hasattr(cache, _CONSTANTS):
        delattr(cache, _CONSTANTS)


class LayerCache:
    """Keys, values and, for some mechanisms, a running state of one layer.

    Args:
        cache: of the model.
        layer: index of the layer in it.
        static_prefill: the prefill of a static cache: keys behind its tokens are allocated, but
            not written yet.
        decodes: tokens continue a sequence that a dynamic cache holds, without gradients.
    """

    def __init__(
        self, cache: Cache, layer: int, *, static_prefill: bool = False, decodes: bool = False
    ) -> None:
        self.cache, self.layer = cache, layer
        self.static_prefill, self.decodes = static_prefill, decodes

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values [B, heads, T, width]; return all that are cached now."""
        T = k.shape[2]
        if T == 0:  # a context whose keys and values were cached before
            layer = self.cache.layers[self.layer]
            return layer.keys, layer.values
        if k.shape[3] == 0:  # only layers of our own count tokens without channels
            self._running_layer()
            with_room(self.cache)
        k, v = self.cache.update(k, v, self.layer)
        if self.static_prefill:
            k, v = k[:, :, :T], v[:, :, :T]
        return k, v

    def constant(self, compute: Callable[[], Tensor]) -> Tensor:
        """Return a value of the parameters alone; decoding computes it once per sequence.

        Only the cache keeps it, so that parameters may change before the next sequence.
        """
        if not self.decodes:
            return compute()
        kept = self.cache.__dict__.setdefault(_CONSTANTS, {})
        if self.layer not in kept:
            kept[self.layer] = compute()
        value: Tensor = kept[self.layer]
        return value

    def state(self) -> Tensor | None:
        """Return the running state stored last, None before the first."""
        layer = self._running_layer()
        started = layer.is_recurrent_states_initialized[0]
        return layer.recurrent_states[0] if started else None

    def store(self, state: Tensor) -> None:
        """Store a running state of constant size in place of the last one."""
        self._running_layer()
        self.cache.update_recurrent_state(state, self.layer)

    def _running_layer(self) -> Any:
        layer = self.cache.layers[self.layer]
        if not hasattr(layer, "recurrent_states"):
            raise ValueError(
                f"past_key_values: {type(self.cache).__name__} cannot store this mechanism's "
                "running state; create it with DynamicCache(config=model.config)"
            )
        return layer
