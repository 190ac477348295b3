"""What a layer's constructor raises for, with what is allowed."""

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from antiphase.attention.base import Attention


def check_supported(layer: "Attention") -> None:
    """Raise for what the layer's mechanism does not have: a window, dropout, a soft-cap."""
    if layer.running_state and layer.window is not None:
        raise ValueError(
            f"window: got {layer.window}, but {layer.name} keeps a running state over all tokens, "
            "from which none can be taken out again; leave window out"
        )
    if layer.softcap is not None and not layer.has_softmax:
        raise ValueError(
            f"softcap: got {layer.softcap}, but {layer.name} has no softmax whose scores it could "
            "bound; leave it out"
        )
    if layer.dropout and not layer.has_maps:
        raise ValueError(
            f"dropout: got {layer.dropout}, but {layer.name} has no attention map whose weights it "
            "could drop; leave it out"
        )


def check_ranges(head_dim: int, layer: int, eps: float, rope_theta: float | None) -> None:
    """Raise for sizes that no layer can have."""
    if head_dim < 1:
        raise ValueError(f"head_dim: got {head_dim}, expected at least 1")
    if layer < 0:
        raise ValueError(f"layer: got {layer}, expected 0 for the first")
    if not 0 < eps < math.inf or (rope_theta is not None and not 0 < rope_theta < math.inf):
        raise ValueError(
            f"eps, rope_theta: got {eps}, {rope_theta}, expected finite numbers above 0"
        )


def check_masking(
    window: int | None, keep_first: int, dropout: float, softcap: float | None
) -> None:
    """Raise for a window, dropout or soft-cap out of range."""
    if window is not None and window < 1:
        raise ValueError(f"window: got {window}, expected at least 1, or None for no window")
    if keep_first < 0 or (keep_first and window is None):
        raise ValueError(
            f"keep_first: got {keep_first} with window={window}, expected at least 0, and above 0 "
            "only with a window"
        )
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout: got {dropout}, expected a probability, 0 <= dropout < 1")
    if softcap is not None and not 0 < softcap < math.inf:
        raise ValueError(f"softcap: got {softcap}, expected a number above 0, or None for no cap")


def check_heads(hidden: int, heads: int, kv_heads: int, head_dim: int | None) -> None:
    """Raise for numbers of heads that do not fit together."""
    for what, n in {"hidden_size": hidden, "num_heads": heads, "num_kv_heads": kv_heads}.items():
        if n < 1:
            raise ValueError(f"{what}: got {n}, expected at least 1")
    if head_dim is None and hidden % heads:
        raise ValueError(
            f"num_heads: {heads} heads do not divide a hidden size of {hidden}; change one of them "
            "or give head_dim"
        )
    if heads % kv_heads:
        raise ValueError(
            f"num_kv_heads: {kv_heads} key/value heads do not divide {heads} heads; "
            f"divisors are {', '.join(str(n) for n in range(1, heads + 1) if heads % n == 0)}"
        )
