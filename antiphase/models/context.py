"""What the cross-attention of a decoder reads: the encoder's output, and its cached keys."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache

from antiphase.models.cache import LayerCache, forget_constants
from antiphase.models.masks import token_mask, without_full_padding_mask


@dataclass(frozen=True)
class Context:
    """The encoder's output in one call of the decoder; `encoder_context` makes one."""

    states: Tensor  # [B, S, D]; or no tokens, [B, 0, D]: the cache has the keys and values of all
    mask: Tensor | None  # [B, S], True: a token
    cache: Cache | None

    def of_layer(self, layer: int, decodes: bool) -> dict[str, Any]:
        """Return the arguments of a block, beside the states.

        Args:
            layer: index of the block.
            decodes: as for `LayerCache`.
        """
        cache = None if self.cache is None else LayerCache(self.cache, layer, decodes=decodes)
        return {"context_mask": self.mask, "context_cache": cache}


def encoder_context(states: Tensor, attention_mask: Tensor | None, cache: Cache | None) -> Context:
    """Return what the blocks' cross-attention reads.

    Keys and values are computed once: layers append those of the tokens that they get to the cache,
    and later calls give them no tokens.

    Args:
        states: the encoder's output [B, S, D].
        attention_mask: its padding mask [B, S], or None.
        cache: of the cross-attention; empty in the first call. None without one.
    """
    mask = None
    if attention_mask is not None:
        mask = without_full_padding_mask(token_mask(attention_mask, states))
    if cache is not None and cache.get_seq_length():
        states = states[:, :0]
    elif cache is not None:
        forget_constants(cache)
    return Context(states, mask, cache)
