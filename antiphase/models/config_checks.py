"""What a model's configuration raises for, with what is allowed.

Which parts of a model a mechanism can be is not listed here: its class says it (`causal_only`,
`row_by_row`, `running_state`, ..., see `antiphase.attention.base`).
"""

import math
from collections.abc import Callable, Collection
from typing import Any

from antiphase.attention import MECHANISMS, Attention, mechanism
from antiphase.options import nearest

_SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "max_position_embeddings",
)


def check_choice(name: str, value: str, allowed: Collection[str]) -> None:
    """Raise for a value of a field that is not among those allowed."""
    if value not in allowed:
        raise ValueError(
            f"{name}: got {value!r}, allowed are {', '.join(allowed)}{nearest(str(value), allowed)}"
        )


def check_sizes(config: Any) -> None:
    """Raise for a size that no model can have; `Attention` checks how sizes fit together."""
    for name in _SIZES:
        value = getattr(config, name)
        if value < 1:
            raise ValueError(f"{name}: got {value}, expected at least 1")
    if not 0 < config.initializer_range < math.inf:
        raise ValueError(
            f"initializer_range: got {config.initializer_range}, expected a standard deviation "
            "above 0, such as 0.02 (which transformers takes in place of 0)"
        )
    if not 0 < config.branch_scale < math.inf:
        raise ValueError(f"branch_scale: got {config.branch_scale}, expected a number above 0")
    std = config.query_key_std
    if std is not None and not 0 < std < math.inf:
        raise ValueError(f"query_key_std: got {std}, expected a number above 0, or None")
    if config.initialisation == "published":
        for name, usual in (("branch_scale", 1), ("query_key_std", None)):
            if (value := getattr(config, name)) != usual:
                raise ValueError(
                    f"{name}: got {value}, but the published initialisation has none; use "
                    f"initialisation='scaled' or leave {name} out"
                )


def check_masking(config: Any) -> None:
    """Raise for a window, dropout or soft-cap that is out of range, or that there cannot be."""
    window, softcap = config.sliding_window, config.attn_logit_softcapping
    if window is not None and not window >= 1:
        raise ValueError(
            f"sliding_window: got {window}, expected at least 1, or None for no window"
        )
    if window is not None and not config.is_causal:
        raise ValueError(
            f"sliding_window: got {window} with is_causal=False, but a window ends at its token; "
            "pass None, or is_causal=True"
        )
    if window is not None and mechanism(config.attention).running_state:
        raise ValueError(
            f"sliding_window: got {window}, but {config.attention} keeps a running state over "
            "all tokens, from which none can be taken out again; pass None or another attention"
        )
    for name in ("attention_dropout", "residual_dropout"):
        if not 0 <= getattr(config, name) < 1:
            raise ValueError(
                f"{name}: got {getattr(config, name)}, expected a probability, 0 <= p < 1"
            )
    if config.attention_dropout and not mechanism(config.attention).has_maps:
        raise ValueError(
            f"attention_dropout: got {config.attention_dropout}, but {config.attention} has no "
            "attention map whose weights it could drop; pass 0 or another attention"
        )
    if softcap is not None and not 0 < softcap < math.inf:
        raise ValueError(
            f"attn_logit_softcapping: got {softcap}, expected a number above 0, or None"
        )
    if softcap is not None and not mechanism(config.attention).has_softmax:
        raise ValueError(
            f"attn_logit_softcapping: got {softcap}, but {config.attention} has no softmax whose "
            "scores it could bound; pass None or another attention"
        )


def check_bidirectional(field: str, name: str, default: bool = False) -> None:
    """Raise for a mechanism that cannot attend to later tokens.

    Args:
        field: of the configuration, for the error.
        name: of the mechanism.
        default: whether it was not given, but is that of the decoder.
    """
    if not can_be_bidirectional(mechanism(name)):
        raise ValueError(
            f"{field}: {_got(name, default)}, which reads tokens in their order, but a "
            f"bidirectional encoder has none; {_set(field, can_be_bidirectional, default)}"
        )


def check_cross(field: str, name: str, default: bool = False) -> None:
    """Raise for a mechanism that cannot be a decoder's cross-attention.

    Args:
        field: of the configuration, for the error.
        name: of the mechanism.
        default: whether it was not given, but is that of the decoder.
    """
    kind = mechanism(name)
    if kind.causal_only:
        raise ValueError(
            f"{field}: {_got(name, default)}, which reads tokens in their order and has no "
            f"context; {_set(field, can_be_cross, default)}"
        )
    if not kind.row_by_row:
        raise ValueError(
            f"{field}: {_got(name, default)}, where a row of the map depends on other queries, in "
            f"a decoder on those of later tokens; {_set(field, can_be_cross, default)}"
        )


def can_be_bidirectional(kind: type[Attention]) -> bool:
    """Return whether a mechanism can attend to later tokens."""
    return not kind.causal_only


def can_be_cross(kind: type[Attention]) -> bool:
    """Return whether a mechanism can be a decoder's cross-attention.

    It takes keys of another sequence, and each query by itself: the others are later tokens.
    """
    return not kind.causal_only and kind.row_by_row


def _got(name: str, default: bool) -> str:
    return f"not given, and by default the decoder's {name!r}" if default else f"got {name!r}"


def _set(field: str, fits: Callable[[type[Attention]], bool], default: bool) -> str:
    allowed = ", ".join(name for name, kind in MECHANISMS.items() if fits(kind))
    return f"set {field} to one of {allowed}" if default else f"allowed are {allowed}"
