"""Who sees whom: from transformers' attention masks to the mask and flag of the ops."""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers.cache_utils import Cache
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, create_causal_mask, sdpa_mask

from antiphase.models.config import AntiphaseConfig

BACKENDS = ("auto", "reference", "sdpa", "fused_cpu")
for _name in BACKENDS:  # every backend takes boolean masks, or none where causality says it all
    ALL_MASK_ATTENTION_FUNCTIONS.register(_name, sdpa_mask)


@dataclass(frozen=True)
class Visible:
    """`mask` as the ops take it (True: may attend), beside causality aligned to the last key."""

    mask: Tensor | None
    causal: bool


def visibility(
    config: AntiphaseConfig,
    x: Tensor,
    attention_mask: Tensor | None,
    cache: Cache | None,
    positions: Tensor,
) -> Visible:
    """Return what the queries of x [B, T, D] may see.

    Padding stays a row of keys [B, 1, 1, Tk] beside the causal flag, which kernels like best; only
    static caches, packed texts and masks of the user's own need the whole square.
    """
    growing = cache is not None and not cache.is_compileable
    if attention_mask is None and growing:
        return Visible(None, causal=True)
    if attention_mask is not None and attention_mask.dim() == 2 and (growing or cache is None):
        padding = attention_mask.to(device=x.device, dtype=torch.bool)
        if not torch.compiler.is_compiling() and bool(padding.all()):
            return Visible(None, causal=True)
        return Visible(padding[:, None, None, :], causal=True)
    mask = create_causal_mask(
        config=config,
        inputs_embeds=x,
        attention_mask=attention_mask,
        past_key_values=cache,
        position_ids=positions,
    )
    return Visible(mask, causal=mask is None)
