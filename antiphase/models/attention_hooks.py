"""Queries, keys and outputs of any Hugging Face model's attention, while it runs as fast as ever.

Through transformers' attention interface: the model is not switched to its eager attention, which
would materialise every map.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from antiphase.ops import repeat_heads

PREFIX = "antiphase_listening_"
Listener = Callable[["Call"], None]
_LISTENERS: list[Listener] = []


class Call:
    """One layer's attention: q [B, h, T, d], k [B, h_kv, T, d], what is masked, what came out."""

    def __init__(
        self, q: Tensor, k: Tensor, mask: Tensor | None, options: dict[str, Any], out: Tensor
    ) -> None:
        self.q, self.k, self.mask, self.options, self.out = q, k, mask, options, out

    def scores(self, rows: Tensor) -> Tensor:
        """Return scores [B, h, n, T] of rows [B, n] in fp32, -inf where nothing is seen."""
        q, k = self.q, self.k
        asked = q.gather(2, rows[:, None, :, None].expand(-1, q.shape[1], -1, q.shape[3]))
        scaling = self.options.get("scaling") or q.shape[-1] ** -0.5
        s = (asked.float() @ repeat_heads(k, q.shape[1]).float().mT) * scaling
        if cap := self.options.get("softcap"):
            s = cap * torch.tanh(s / cap)
        seen = torch.arange(k.shape[2], device=k.device) <= rows[:, None, :, None]
        mask = self.mask
        if mask is not None and mask.dim() == 2:  # of keys alone, as flash attention has it
            seen = seen & mask[:, None, None, -k.shape[2] :].bool()
        elif mask is not None:
            index = rows[:, None, :, None].expand(-1, mask.shape[1], -1, mask.shape[3])
            chosen = mask.expand(len(rows), -1, -1, -1).gather(2, index)
            seen = seen & (chosen if chosen.dtype == torch.bool else chosen > -1e4)
        return s.masked_fill(~seen, -torch.inf)

    def maps(self, rows: Tensor) -> Tensor:
        """Return the maps [B, h, n, T] of rows [B, n]; what a learned sink takes is left out."""
        s = self.scores(rows)
        sinks = self.options.get("s_aux")
        if sinks is None:
            return torch.softmax(s, dim=-1)
        extra = sinks.float()[None, :, None, None].expand(*s.shape[:3], 1)
        return torch.softmax(torch.cat([s, extra], dim=-1), dim=-1)[..., :-1]


@contextlib.contextmanager
def listening(model: PreTrainedModel, listener: Listener) -> Iterator[None]:
    """Tell the listener of every layer's attention, in order."""
    configs = {id(m.config): m.config for m in model.modules() if isinstance(m, PreTrainedModel)}
    before = {key: config._attn_implementation for key, config in configs.items()}
    _LISTENERS.append(listener)
    try:
        for key, config in configs.items():
            config._attn_implementation_internal = _registered(before[key] or "eager")
        yield
    finally:
        _LISTENERS.remove(listener)
        for key, config in configs.items():
            config._attn_implementation_internal = before[key]


def _registered(implementation: str) -> str:
    """Return the name under which that attention runs and is told of."""
    name = PREFIX + implementation

    def attend(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **kwargs: Any
    ) -> tuple[Tensor, Any]:
        inner = _attention_of(implementation, module)
        out, weights = inner(module, query, key, value, mask, **kwargs)
        for listener in _LISTENERS:
            listener(Call(query, key, mask, kwargs, out))
        return out, weights

    if name not in ALL_ATTENTION_FUNCTIONS:
        AttentionInterface.register(name, attend)
        if implementation in ALL_MASK_ATTENTION_FUNCTIONS:
            AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS[implementation])
    return name


def _attention_of(implementation: str, module: nn.Module) -> Callable[..., Any]:
    """Return the function that the model would have used; eager ones stand beside their model."""
    if implementation == "eager":
        home = sys.modules[type(module).__module__]
        return getattr(home, "eager_attention_forward")  # noqa: B009
    return ALL_ATTENTION_FUNCTIONS[implementation]
