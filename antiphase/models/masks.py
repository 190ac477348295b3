"""From transformers' attention masks and positions to mask, documents and causal flag of ops."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.cache_utils import Cache
from transformers.masking_utils import (
    ALL_MASK_ATTENTION_FUNCTIONS,
    create_causal_mask,
    create_sliding_window_causal_mask,
    sdpa_mask,
)

from antiphase.models.config import SLIDING, AntiphaseConfig
from antiphase.ops import documents_from_cu_seqlens, documents_from_position_ids
from antiphase.ops.fused_cpu.eager import is_tracing

_ATTRIBUTE = "antiphase_documents"  # of a cache that holds packed sequences
BACKENDS = ("auto", "reference", "sdpa", "fused_cpu")
EAGER = "eager"  # transformers' name for "reference"; its masks are additive
for _name in BACKENDS:  # boolean masks, or None where the causal flag is enough
    ALL_MASK_ATTENTION_FUNCTIONS.register(_name, sdpa_mask)


class OpsMask(NamedTuple):
    """A mask as the layers take it."""

    mask: Any  # [B, 1, Tq | 1, Tk], True: attend; or as an attention function takes it; or None
    causal: bool  # aligned to the last key
    documents: Tensor | None = None  # [B | 1, Tk], the document id of every key


def ops_masks(
    config: AntiphaseConfig,
    kinds: Iterable[str],
    x: Tensor,
    attention_mask: Any,
    cache: Cache | None,
    documents: Tensor | None,
) -> dict[str, OpsMask]:
    """Return which keys the tokens of x may attend to, by type of layer.

    A padding mask stays one row of keys [B, 1, 1, Tk] beside the causal flag, which the fast
    kernels support, and the layers add their window. Only static caches and a caller's own
    4-dimensional mask need the full [B, 1, Tq, Tk].

    Args:
        config: of the model.
        kinds: types of layers that the model has.
        x: [B, Tq, D], the embedded tokens.
        attention_mask: None, a padding mask [B, Tk], a mask [B, 1, Tq, Tk], or such masks by type
            of layer, as `generate` makes them for a static cache.
        cache: the KV cache, before x is appended; None without one.
        documents: of packed sequences, see `packed_documents`.

    Raises:
        ValueError: packed sequences with a static cache.
    """
    if documents is not None and cache is not None and cache.is_compileable:
        raise ValueError(
            "past_key_values: a static cache does not know the documents of packed sequences; use "
            "a dynamic one (cache_implementation='dynamic')"
        )
    masks = {}
    for kind in kinds:
        given = attention_mask.get(kind) if isinstance(attention_mask, dict) else attention_mask
        masks[kind] = _ops_mask(config, kind, x, given, cache, documents)
    return masks


def _ops_mask(
    config: AntiphaseConfig,
    kind: str,
    x: Tensor,
    attention_mask: Tensor | None,
    cache: Cache | None,
    documents: Tensor | None,
) -> OpsMask:
    if cache is None or not cache.is_compileable:
        if attention_mask is None:
            return OpsMask(None, causal=config.is_causal, documents=documents)
        if attention_mask.dim() == 2:
            padding = token_mask(attention_mask, x)
            mask = padding[:, None, None, :]
            return OpsMask(mask, causal=config.is_causal, documents=documents)
    # With is_causal=False, `create_causal_mask` makes a bidirectional one.
    create = create_sliding_window_causal_mask if kind == SLIDING else create_causal_mask
    mask = create(
        config=config, inputs_embeds=x, attention_mask=attention_mask, past_key_values=cache
    )
    if mask is not None and mask.is_floating_point():
        # transformers adds the lowest finite number where a key is masked, the ops know -inf
        mask = mask.masked_fill(mask <= torch.finfo(mask.dtype).min, -torch.inf)
    return OpsMask(mask, causal=config.is_causal and mask is None)


def function_masks(
    config: AntiphaseConfig,
    kinds: Iterable[str],
    x: Tensor,
    attention_mask: Any,
    cache: Cache | None,
    documents: Tensor | None,
) -> dict[str, OpsMask]:
    """Return the masks of the configured attention function, by type of layer.

    transformers makes them in the form that the function takes. It makes none for functions that
    it has no form for: these, such as a server's, know by themselves what is visible.

    Args:
        config: of the model; `_attn_implementation` names the function.
        kinds: types of layers that the model has.
        x: [B, Tq, D], the embedded tokens.
        attention_mask: as for `ops_masks`.
        cache: the KV cache, before x is appended; None without one.
        documents: of packed sequences, see `packed_documents`.
    """
    masks = {}
    for kind in kinds:
        create = create_sliding_window_causal_mask if kind == SLIDING else create_causal_mask
        given = attention_mask.get(kind) if isinstance(attention_mask, dict) else attention_mask
        mask = create(
            config=config,
            inputs_embeds=x,
            attention_mask=given,
            past_key_values=cache,
            and_mask_function=None if documents is None else _same_document(documents, x.shape[0]),
        )
        masks[kind] = OpsMask(mask, causal=config.is_causal)
    return masks


def _same_document(documents: Tensor, B: int) -> Any:
    documents = documents.expand(B, -1)
    return lambda b, h, q, k: documents[b, q] == documents[b, k]


def without_full_padding_mask(attention_mask: Any) -> Any:
    """Return a model's attention mask, but None for a padding mask of tokens alone: it is faster.

    Args:
        attention_mask: as for `ops_masks`. A compiled graph cannot look at its values.
    """
    padding = isinstance(attention_mask, Tensor) and attention_mask.dim() == 2
    if padding and not _is_recorded() and bool(attention_mask.all()):
        return None
    return attention_mask


def _is_recorded() -> bool:
    """Tell whether a graph is recorded: values of tensors then decide nothing."""
    return torch.compiler.is_compiling() or is_tracing()


def token_mask(attention_mask: Tensor, x: Tensor) -> Tensor:
    """Return a padding mask [B, Tk] as booleans, True: a token."""
    return attention_mask.to(device=x.device, dtype=torch.bool)


def positions_of_tokens(attention_mask: Any, positions: Tensor) -> Tensor:
    """Return positions that count tokens and no padding, so that its side makes no difference.

    Args:
        attention_mask: as for `ops_masks`; only a padding mask [B, Tk] changes the positions.
        positions: [1, T], those that count padding, too.
    """
    if not isinstance(attention_mask, Tensor) or attention_mask.dim() != 2:
        return positions
    counted = attention_mask.to(positions).cumsum(1) - 1
    return counted[:, -positions.shape[1] :].clamp_min(0)


def packed_documents(
    x: Tensor,
    attention_mask: Any,
    position_ids: Tensor | None,
    cache: Cache | None,
    boundaries: dict[str, Any],
) -> Tensor | None:
    """Return the documents of packed sequences, from what flattening collators give a model.

    These are, the first that is there: `cu_seq_lens_q`, `seq_idx`, or positions that restart. The
    first token of a call continues the last cached document, unless its position is 0.

    Args:
        x: [B, T, D], the embedded tokens.
        attention_mask: as the model got it. The positions of padding start no document. A mask of
            4 dimensions says all by itself.
        position_ids: [B | 1, T], if the caller gave them.
        cache: the KV cache, before x is appended. It keeps the documents of its tokens. In a
            compiled graph, a static one holds one document.
        boundaries: the model's other keyword arguments, perhaps with `cu_seq_lens_q` or `seq_idx`.

    Returns:
        The document id of every key [B | 1, Tk]; None where each sequence is one document.

    Raises:
        ValueError: boundaries that do not fit the tokens or the cache.
    """
    static = cache is not None and cache.is_compileable
    given = attention_mask.values() if isinstance(attention_mask, dict) else [attention_mask]
    if any(mask is not None and mask.dim() == 4 for mask in given):
        return None
    if static and _is_recorded():  # positions have no values to look at
        return None
    past = 0 if cache is None else int(cache.get_seq_length())
    padding = token_mask(attention_mask, x) if isinstance(attention_mask, Tensor) else None
    starts = _starts(x, position_ids, None if padding is None else padding[:, past:], boundaries)
    cached = getattr(cache, _ATTRIBUTE, None) if past else None
    if past and position_ids is not None and not _is_recorded():
        begins = position_ids[:, :1] == 0
        if padding is not None:  # not where padding ends
            begins = begins & padding[:, past : past + 1] & padding[:, :past].any(1, keepdim=True)
        if bool(begins.any()):
            rest = x.new_zeros(1, x.shape[1], dtype=torch.bool) if starts is None else starts
            rows = max(begins.shape[0], rest.shape[0])
            starts = torch.cat([begins.expand(rows, 1), rest.expand(rows, -1)[:, 1:]], dim=1)
    if starts is None and cached is None:
        return None
    documents = _continued(x, past, cached, starts)
    if cache is not None:
        setattr(cache, _ATTRIBUTE, documents)
    return documents


def _continued(x: Tensor, past: int, cached: Tensor | None, starts: Tensor | None) -> Tensor:
    """Return the document ids of cached and new keys [B | 1, Tk]."""
    if cached is None:
        cached = x.new_zeros(1, past, dtype=torch.int32)
    if starts is None:
        starts = x.new_zeros(1, x.shape[1], dtype=torch.bool)
    cached = cached[:, :past]  # tokens may have been removed again
    rows = max(cached.shape[0], starts.shape[0])
    if not {cached.shape[0], starts.shape[0]} <= {1, x.shape[0]} or cached.shape[1] != past:
        raise ValueError(
            f"past_key_values: holds packed sequences of {tuple(cached.shape)} tokens, which a "
            f"batch of {len(x)} sequences after {past} tokens does not continue; use a new cache"
        )
    last = cached[:, -1:] if past else 0
    numbers = starts.cumsum(1, dtype=torch.int32) + last
    return torch.cat([cached.expand(rows, -1), numbers.expand(rows, -1)], dim=1)


def _starts(
    x: Tensor, position_ids: Tensor | None, padding: Tensor | None, boundaries: dict[str, Any]
) -> Tensor | None:
    """Return where a new document starts among the tokens of this call [B | 1, T]; None: nowhere.

    The first token of the call counts as a continuation.
    """
    B, T = x.shape[:2]
    cu_seqlens, seq_idx = boundaries.get("cu_seq_lens_q"), boundaries.get("seq_idx")
    if cu_seqlens is not None:
        if B != 1:
            raise ValueError(
                f"cu_seq_lens_q: got a batch of {B} sequences; documents are packed into one"
            )
        ids = documents_from_cu_seqlens(cu_seqlens.to(x.device), T)[None]
    elif seq_idx is not None:
        if seq_idx.shape not in ((B, T), (1, T)):
            raise ValueError(f"seq_idx: got {tuple(seq_idx.shape)}, expected [B, T] = {[B, T]}")
        ids = seq_idx.to(x.device)
    elif position_ids is not None and T > 1:
        if padding is not None:
            return _if_any(_restarts(position_ids.expand(B, -1), padding))
        ids = documents_from_position_ids(position_ids)
    else:
        return None
    return _if_any((ids != ids.roll(1, dims=1)) & (torch.arange(T, device=x.device) > 0))


def _restarts(positions: Tensor, padding: Tensor) -> Tensor:
    """Return where positions [B, T] do not continue those of the token before, beside padding.

    Padding has any positions (`generate` gives it 0), and those of tokens may count it or not.
    """
    place = torch.arange(positions.shape[1], device=positions.device).expand_as(positions)
    before = torch.where(padding, place, -1).cummax(1).values  # the last token up to here
    before = F.pad(before[:, :-1], (1, 0), value=-1)
    step = positions - positions.gather(1, before.clamp_min(0))
    return padding & (before >= 0) & (step != 1) & (step != place - before)


def _if_any(starts: Tensor) -> Tensor | None:
    """Return None if no document starts: calls without documents are faster."""
    return starts if _is_recorded() or bool(starts.any()) else None
