"""What maps without T x T weights need: the mask and state of the running form.

A noise term A2 V, or a complete map, is computed cumulatively over the keys. Decoding keeps a state
of constant size in place of these keys.
"""

from typing import Any

import torch
from torch import Tensor

from antiphase.attention.heads import Heads, Inputs
from antiphase.attention.masking import Masking, four_dimensions


def needs_map(masking: Masking) -> bool:
    """Return whether a call has no running form: the difference is materialised.

    Dropout drops single weights of the difference. Without causal order, documents have no running
    sum.
    """
    return masking.dropout > 0 or (masking.documents is not None and not masking.causal)


def running_arguments(name: str, heads: Heads, masking: Masking) -> dict[str, Any]:
    """Return the arguments of `linear_attention` and `prefix_attention`: mask, documents, state."""
    packed = masking.documents is not None and masking.causal  # else see `needs_map`
    B, new = heads.x.shape[0], heads.new
    return {
        "causal": masking.causal,
        "keys": _new_key_padding(name, B, new, masking.mask),
        "starts": _starts(masking.documents, B, new) if packed else None,
        "state": None if heads.cache is None else heads.cache.state(),
    }


def marks_of_inputs(name: str, inputs: Inputs, past: int) -> dict[str, Tensor | None]:
    """Return `keys` and `starts` of `running_arguments`, of a causal layer before it has heads.

    Args:
        name: of the mechanism, for the error.
        inputs: of this call.
        past: number of earlier keys.
    """
    (B, new), mask, documents = inputs.x.shape[:2], inputs.mask, inputs.documents
    if mask is not None:
        mask = four_dimensions(mask[..., -(past + new) :], B, past + new)
    if documents is not None:
        documents = documents.reshape(-1, documents.shape[-1])[:, -(past + new) :]
    return {
        "keys": _new_key_padding(name, B, new, mask),
        "starts": None if documents is None else _starts(documents, B, new),
    }


def _starts(documents: Tensor | None, B: int, new: int) -> Tensor:
    """Return where the keys that this call added start a document, [B, new]."""
    assert documents is not None
    documents = documents.expand(B, -1)
    return (documents != documents.roll(1, dims=-1))[:, -new:]


def _new_key_padding(name: str, B: int, new: int, mask: Tensor | None) -> Tensor | None:
    """Return the padding mask of the keys that this call added, [B, new], True: a real token.

    Args:
        name: of the mechanism, for the error.
        B: sequences.
        new: how many keys this call added.
        mask: the layer's mask, [B | 1, heads | 1, Tq | 1, Tk].

    Raises:
        ValueError: the mask differs by query or head, or is additive. A running sum over the keys
            is the same for all queries and cannot leave out a key for some of them.
    """
    if mask is None:
        return None
    if mask.dtype != torch.bool or mask.shape[1:3] != (1, 1):
        raise ValueError(
            f"mask: got {mask.dtype} of shape {tuple(mask.shape)}; {name}, with its running "
            "state, takes only a boolean padding mask [B, Tk] beside causal=True or False"
        )
    added = mask[:, 0, 0, mask.shape[-1] - new :]  # none, if all keys of a context are cached
    return added.expand(B, -1)


def store_state(heads: Heads, state: Tensor) -> None:
    """Store the state after this call's keys in the cache, if there is one."""
    if heads.cache is not None:
        heads.cache.store(state)


def visible_noise(name: str, heads: Heads, masking: Masking) -> Tensor | None:
    """Return where a query may attend, broadcastable to [B, h, Tq, Tk]; None for everywhere.

    Raises:
        ValueError: the noise keys of earlier calls are gone, or the mask is additive.
    """
    if heads.past or heads.new != heads.k.shape[2]:
        raise ValueError(
            f"maps: {name} keeps a running state, not these keys of earlier tokens; request the "
            "maps of the complete sequence at once, without a cache"
        )
    if masking.mask is not None and masking.mask.dtype != torch.bool:
        raise ValueError(f"mask: got {masking.mask.dtype}; {name} takes only a boolean one")
    return masking.visible(heads.q, heads.k)
