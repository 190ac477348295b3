"""A KV cache with room for the tokens to come: decoding writes one token and copies no other.

transformers' dynamic cache concatenates, and so copies all keys and values with every token. The
layers here keep them as views of larger tensors. They are layers of a `DynamicCache`: beams,
cropping and selection work as they do there.
"""

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import (
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
)

from antiphase.ops.fused_cpu.eager import is_eager

_LEAST_ROOM = 64  # tokens


def with_room(cache: DynamicCache) -> DynamicCache:
    """Replace the layers of a dynamic cache by ones with room for more tokens, and return it."""
    for i, layer in enumerate(cache.layers):
        kind = _KINDS.get(type(layer))
        if kind is not None:
            grown = kind.__new__(kind)
            grown.__dict__.update(layer.__dict__)
            cache.layers[i] = grown
    return cache


class _Room:
    """Memory for tokens, [B, heads, capacity, width], half as much again as those that it holds."""

    memory: Tensor | None = None
    used: Tensor | None = None  # the view of it that a layer keeps

    def append(self, cached: Tensor, new: Tensor) -> Tensor:
        """Return cached and new tokens, [B, heads, T, width], one after the other.

        Only where `cached` is the view kept last, nothing behind it is in use.
        """
        T, n = cached.shape[2] if cached.dim() == 4 else 0, new.shape[2]  # 1 dimension: empty
        start = self._start(T + n) if cached is self.used else None
        if start is None or self.memory is None:
            start, size = 0, T + n + max((T + n) // 2, _LEAST_ROOM)
            self.memory = self.used = None  # freed first, unless `cached` is a view of it
            self.memory = new.new_empty(*new.shape[:2], size, new.shape[3])
            if T:
                self.memory.narrow(2, 0, T).copy_(cached)
        self.memory.narrow(2, start + T, n).copy_(new)
        return self.memory.narrow(2, start, T + n)

    def _start(self, length: int) -> int | None:
        """Return where the view starts, None if `length` tokens from there do not fit."""
        assert self.memory is not None
        assert self.used is not None
        start = self.used.storage_offset() // self.memory.stride(2)
        writable = not self.memory.is_inference() or torch.is_inference_mode_enabled()
        return start if writable and start + length <= self.memory.shape[2] else None


class _Growing(DynamicLayer):
    """What the layers share: keys and values are views of rooms.

    A view from before `crop` is overwritten by the tokens that come after it.
    """

    _rooms: tuple[_Room, _Room] | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Append keys and values [B, heads, T, width]; return those to attend to."""
        if not self._may_grow(key_states, value_states):
            self._rooms = None
            return super().update(key_states, value_states, *args, **kwargs)
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        if self._rooms is None:
            self._rooms = _Room(), _Room()
        k, v = self._rooms
        grown = k.append(self.keys, key_states), v.append(self.values, value_states)
        visible = self._keep(*grown, key_states.shape[2])
        k.used, v.used = self.keys, self.values
        return visible

    def _may_grow(self, k: Tensor, v: Tensor) -> bool:
        """Tell whether this call may write into memory that earlier calls returned.

        With gradients, their backward still needs it. Compiled graphs concatenate, and so do
        tensors that do not continue the cached ones: this raises, or converts them.
        """
        if torch.is_grad_enabled() or not is_eager(k, v):
            return False
        return _continues(self.keys, k) and _continues(self.values, v)

    def _keep(self, k: Tensor, v: Tensor, new: int) -> tuple[Tensor, Tensor]:
        """Store all keys and values, of which the last `new` are new; return the visible ones."""
        self.keys, self.values = k, v
        return k, v

    def crop(self, tokens_to_remove: int) -> None:
        """Remove tokens from the end, as transformers' layers do."""
        rooms = self._rooms
        grown = rooms is not None and rooms[0].used is self.keys and rooms[1].used is self.values
        super().crop(tokens_to_remove)
        if grown and rooms is not None:
            rooms[0].used, rooms[1].used = self.keys, self.values


def _continues(cached: Tensor | None, new: Tensor) -> bool:
    """Tell whether new tokens have all that cached ones have, except for their number."""
    if cached is None or cached.dim() != 4:  # empty
        return True
    before, after = ((t.dtype, t.device, *t.shape[:2], t.shape[3]) for t in (cached, new))
    return before == after


class GrowingLayer(_Growing):
    """Keys and values of a layer without a window."""


class GrowingStateLayer(_Growing, LinearAttentionAndFullAttentionLayer):
    """Keys, values and the running state of a layer; or keys without channels, and a state."""

    def get_seq_length(self) -> int:
        """Return the number of tokens; transformers' layers count none without channels."""
        counted = self.keys is not None and self.keys.dim() == 4
        return self.keys.shape[-2] if counted else 0


class GrowingSlidingLayer(_Growing, DynamicSlidingWindowLayer):
    """The last keys and values, as many as the window needs."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Append keys and values [B, heads, T, width]; return those to attend to."""
        visible = super().update(key_states, value_states, *args, **kwargs)
        if self._rooms is None and not torch.is_grad_enabled():
            # A view would hold the memory of the complete prompt.
            self.keys, self.values = self.keys.clone(), self.values.clone()
        return visible

    def _may_grow(self, k: Tensor, v: Tensor) -> bool:
        # A room for a long prompt would stay for the few tokens of the window.
        return k.shape[2] < self.sliding_window and super()._may_grow(k, v)

    def _keep(self, k: Tensor, v: Tensor, new: int) -> tuple[Tensor, Tensor]:
        self.cumulative_length += new
        T, past = k.shape[2], self.sliding_window - 1
        if getattr(self, "record_past", False):  # until `crop`
            self.keys, self.values = k, v
            visible = min(T, past + new)
            return k.narrow(2, T - visible, visible), v.narrow(2, T - visible, visible)
        kept = min(T, past)
        self.keys, self.values = k.narrow(2, T - kept, kept), v.narrow(2, T - kept, kept)
        return k, v


_KINDS: dict[type, type[_Growing]] = {
    DynamicLayer: GrowingLayer,
    DynamicSlidingWindowLayer: GrowingSlidingLayer,
    LinearAttentionAndFullAttentionLayer: GrowingStateLayer,
}
