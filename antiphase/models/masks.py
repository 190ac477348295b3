"""From transformers' attention masks to the mask and causal flag of the ops."""

from typing import NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import Cache
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, create_causal_mask, sdpa_mask

from antiphase.models.config import AntiphaseConfig

BACKENDS = ("auto", "reference", "sdpa", "fused_cpu")
for _name in BACKENDS:  # boolean masks, or None where the causal flag is enough
    ALL_MASK_ATTENTION_FUNCTIONS.register(_name, sdpa_mask)


class OpsMask(NamedTuple):
    """A mask as the ops take it."""

    mask: Tensor | None  # [B, 1, Tq | 1, Tk], True: attend
    causal: bool  # aligned to the last key


def ops_mask(
    config: AntiphaseConfig,
    x: Tensor,
    attention_mask: Tensor | None,
    cache: Cache | None,
    positions: Tensor,
) -> OpsMask:
    """Return which keys the tokens of x may attend to.

    A padding mask stays one row of keys [B, 1, 1, Tk] beside the causal flag, which the fast
    kernels support. Only static caches, packed sequences and a caller's own 4-dimensional mask
    need the full [B, 1, Tq, Tk].

    Args:
        config: of the model.
        x: [B, Tq, D], the embedded tokens.
        attention_mask: None, a padding mask [B, Tk] or a mask [B, 1, Tq, Tk].
        cache: the KV cache, before x is appended; None without one.
        positions: [B | 1, Tq]; positions that restart at 0 mark packed sequences.
    """
    dynamic = cache is not None and not cache.is_compileable
    if attention_mask is None and dynamic:
        return OpsMask(None, causal=True)
    if attention_mask is not None and attention_mask.dim() == 2 and (dynamic or cache is None):
        padding = attention_mask.to(device=x.device, dtype=torch.bool)
        # Without padding, no mask at all is faster. A compiled graph cannot branch on values.
        if not torch.compiler.is_compiling() and bool(padding.all()):
            return OpsMask(None, causal=True)
        return OpsMask(padding[:, None, None, :], causal=True)
    mask = create_causal_mask(
        config=config,
        inputs_embeds=x,
        attention_mask=attention_mask,
        past_key_values=cache,
        position_ids=positions,
    )
    return OpsMask(mask, causal=mask is None)
