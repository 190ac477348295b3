"""What noise without a second T x T map needs: the mask and state of the running form.

Its noise A2 V is computed cumulatively over the keys. Decoding keeps a state of constant size in
place of the noise's keys.
"""

import torch
from torch import Tensor

from antiphase.attention.heads import Heads
from antiphase.ops.arguments import causal_mask


def new_key_padding(name: str, heads: Heads, mask: Tensor | None) -> Tensor | None:
    """Return the padding mask of the keys that this call added, [B, new], True: a real token.

    Args:
        name: of the mechanism, for the error.
        heads: of this call.
        mask: the layer's mask, [B | 1, heads | 1, Tq | 1, Tk].

    Raises:
        ValueError: the mask differs by query or head, or is additive. A running sum over the keys
            is the same for all queries and cannot leave out a key for some of them.
    """
    if mask is None:
        return None
    if mask.dtype != torch.bool or mask.shape[1:3] != (1, 1):
        raise ValueError(
            f"mask: got {mask.dtype} of shape {tuple(mask.shape)}; {name}, with its running noise "
            "branch, takes only a boolean padding mask [B, Tk] beside causal=True or False"
        )
    return mask[:, 0, 0, -heads.new :].expand(len(heads.x), -1)


def last_state(heads: Heads) -> Tensor | None:
    """Return the state after earlier calls; None without a cache, or at the first call."""
    return None if heads.cache is None else heads.cache.state()


def store_state(heads: Heads, state: Tensor) -> None:
    """Store the state after this call's keys in the cache, if there is one."""
    if heads.cache is not None:
        heads.cache.store(state)


def visible_keys(name: str, heads: Heads, *, causal: bool, mask: Tensor | None) -> Tensor | None:
    """Return where a query may attend, broadcastable to [B, h, Tq, Tk]; None for everywhere.

    Raises:
        ValueError: the noise keys of earlier calls are gone, or the mask is additive.
    """
    if heads.new != heads.k.shape[2]:
        raise ValueError(
            f"maps: {name} keeps a running state, not the noise keys of earlier tokens; request "
            "the maps of the complete sequence at once, without a cache"
        )
    if mask is not None and mask.dtype != torch.bool:
        raise ValueError(f"mask: got {mask.dtype}; {name} takes only a boolean one")
    if not causal:
        return mask
    T = heads.k.shape[2]
    below = causal_mask(T, T, heads.k.device)
    return below if mask is None else below & mask
