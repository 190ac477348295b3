"""Queries, keys and outputs of any Hugging Face model's attention, while it runs as fast as ever.

Through transformers' attention interface: the model is not switched to its eager attention, which
would materialise every map.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from antiphase.ops import repeat_heads

NAME = "antiphase_listening"
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
        if self.mask is not None:
            mask = self.mask
            index = rows[:, None, :, None].expand(-1, mask.shape[1], -1, mask.shape[3])
            chosen = mask.expand(len(rows), -1, -1, -1).gather(2, index)
            seen = seen & (chosen if chosen.dtype == torch.bool else chosen > -1e4)
        return s.masked_fill(~seen, -torch.inf)


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend as `sdpa` does, and tell who listens."""
    out, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    for listener in _LISTENERS:
        listener(Call(query, key, attention_mask, kwargs, out))
    return out, None


AttentionInterface.register(NAME, _attend)
AttentionMaskInterface.register(NAME, sdpa_mask)


@contextlib.contextmanager
def listening(model: PreTrainedModel, listener: Listener) -> Iterator[None]:
    """Tell the listener of every layer's attention, in order."""
    before = model.config._attn_implementation
    _LISTENERS.append(listener)
    try:
        model.set_attn_implementation(NAME)
        yield
    finally:
        _LISTENERS.remove(listener)
        model.set_attn_implementation(before)
