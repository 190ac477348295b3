"""The base of all mechanisms: how a layer is constructed and called.

A mechanism implements four steps:

    heads = project(inputs)     W_Q, W_K, W_V, RoPE, cache: tokens to queries, keys, values per head
    o = attend(heads)           [B, h, Tq, dv]: an op of `antiphase.ops`
    out = output(o, heads)      [B, Tq, D]: norm or gate where there is one, then W_O
    maps(heads)                 the attention maps that `attend` never materialises
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from antiphase.attention.heads import Cache, Heads, Inputs, Rotary
from antiphase.ops import rotary_table
from antiphase.options import build


@dataclass(frozen=True)
class NoOptions:
    """A mechanism without options."""


class Attention(nn.Module, ABC):
    """Base of all mechanisms: `layer(x, causal=...)` on [B, T, D].

    Args:
        hidden_size: D, the width of the tokens.
        num_heads: of the standard layer that this one replaces; each mechanism derives its own.
        num_kv_heads: of that standard layer; fewer than `num_heads` for grouped-query attention.
        head_dim: width d of the standard layer's heads; hidden_size / num_heads by default.
        layer: index in the model, from 0; V1's lam_init depends on it.
        bias: whether the projections of q, k, v and the output have a bias.
        eps: of the head norm.
        rope_theta: RoPE at positions 0..T-1 with this base; None for no RoPE, or for a model that
            passes `rotary` to `forward`.
        **options: the mechanism's own, the fields of its `Options`.

    Raises:
        ValueError: sizes that do not fit together, or an option that the mechanism does not have.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1  # raised by hand when what the layer computes changes
    Options: ClassVar[type] = NoOptions
    static_cache: ClassVar[bool] = True  # keys and values fit transformers' static cache
    running_state: ClassVar[bool] = False  # decoding keeps a state beside keys and values
    o_proj: nn.Linear

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        num_kv_heads: int | None = None,
        *,
        head_dim: int | None = None,
        layer: int = 0,
        bias: bool = False,
        eps: float = 1e-5,
        rope_theta: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        _check_heads(hidden_size, num_heads, num_kv_heads, head_dim)
        self.hidden_size, self.num_heads, self.num_kv_heads = hidden_size, num_heads, num_kv_heads
        self.head_dim = hidden_size // num_heads if head_dim is None else head_dim
        self.layer, self.bias, self.eps, self.rope_theta = layer, bias, eps, rope_theta
        _check_ranges(self.head_dim, layer, eps, rope_theta)
        self.options: Any = build(f"mechanism {self.name!r}", self.Options, options)
        self.build()
        if rope_theta is not None:
            self.check_rotary_widths("leave rope_theta out")

    @abstractmethod
    def build(self) -> None:
        """Create the layer's parameters."""

    @abstractmethod
    def project(self, inputs: Inputs) -> Heads:
        """Return queries, keys and values per head, with RoPE applied and the cache extended."""

    @abstractmethod
    def attend(self, heads: Heads, *, causal: bool, mask: Tensor | None, backend: str) -> Tensor:
        """Return the output of each head before its norm, [B, h, Tq, dv].

        It is the map `difference` of `maps`, applied to V. With running noise, this call stores the
        new state in the cache, so it is made once per `project`.

        Args:
            heads: what `project` returned.
            causal: aligned to the last key.
            mask: None or [B | 1, h | 1, Tq | 1, Tk], boolean (True: attend) or additive.
            backend: of `antiphase.ops`.
        """

    @abstractmethod
    def output(self, o: Tensor, heads: Heads) -> Tensor:
        """Return the layer's output [B, Tq, D] from the heads' outputs [B, h, Tq, dv]."""

    @abstractmethod
    def maps(self, heads: Heads, *, causal: bool, mask: Tensor | None) -> dict[str, Tensor]:
        """Return the attention maps [B, h, Tq, Tk] by name.

        Args:
            heads: what `project` returned.
            causal: aligned to the last key.
            mask: as for `attend`.

        Returns:
            `signal` (A1) and `difference` (the map that is applied to V); with a noise term also
            `noise` (A2) and `lam` [B, h, Tq, 1].
        """

    def applied_map(self, difference: Tensor) -> Tensor:
        """Return the map that is applied to V, from A1 - lam A2 [B, h, Tq, Tk].

        It is the difference itself; a mechanism that changes it (`rectified`) overrides this.
        Analyses call it to apply a map whose noise they replaced.
        """
        return difference

    @property
    def mixes_sequences(self) -> bool:
        """Return whether a sequence's output depends on the other sequences of its batch."""
        return False

    @property
    def rotary_widths(self) -> tuple[int, ...]:
        """Return the widths of the heads that RoPE rotates."""
        return (self.head_dim,)

    def check_rotary_widths(self, without_rope: str) -> None:
        """Raise for heads that RoPE cannot rotate.

        Args:
            without_rope: how to use no RoPE, for the error.

        Raises:
            ValueError: a width is odd.
        """
        if any(width % 2 for width in self.rotary_widths):
            raise ValueError(
                f"{self.name}: RoPE rotates pairs of channels and needs even widths, but there are "
                f"heads of width {self.rotary_widths}; use even widths, or {without_rope}"
            )

    @property
    def cache_elements_per_token(self) -> int:
        """Return the number of elements that the KV cache holds per token."""
        return 2 * self.num_kv_heads * self.head_dim

    @property
    def head_counts(self) -> dict[str, int]:
        """Return the numbers of heads and maps that this mechanism derived from the baseline."""
        return {"heads": self.num_heads, "kv_heads": self.num_kv_heads}

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        causal: bool = False,
        mask: Tensor | None = None,
        rotary: Rotary | None = None,
        context_rotary: Rotary | None = None,
        cache: Cache | None = None,
        backend: str = "auto",
        return_maps: bool = False,
    ) -> Tensor | tuple[Tensor, dict[str, Tensor]]:
        """Return the layer's output, and with `return_maps` its attention maps.

        Args:
            x: [B, T, D], the tokens of the queries.
            context: [B, Tk, D], the tokens of keys and values in cross-attention; x by default.
            causal: each token attends to itself and earlier ones; only without a context.
            mask: boolean padding mask [B, Tk], True where a key is a real token; or 4 dimensions
                that broadcast to [B, h, T, Tk], boolean (True: attend) or additive.
            rotary: RoPE's cos and sin by head width, at the queries' positions.
            context_rotary: the same for the keys of a context; `rotary` by default.
            cache: of this layer; new keys and values are appended to it.
            backend: of `antiphase.ops`: "auto", "reference", "sdpa" or "fused_cpu".
            return_maps: return (output, maps) with the maps of `maps`.

        Returns:
            [B, T, D], or with `return_maps` that and a dictionary of maps [B, h, T, Tk].
        """
        if context is not None and causal:
            raise ValueError("causal: a context has no order with x; pass causal=False")
        if rotary is None:
            rotary = self._default_rotary(x, context, cache)
        key_rotary = rotary if context_rotary is None else context_rotary
        context = x if context is None else context
        heads = self.project(Inputs(x, context, rotary, key_rotary, cache))
        mask = None if mask is None else _four_dimensions(mask, len(x), heads.k.shape[2])
        out = self.output(self.attend(heads, causal=causal, mask=mask, backend=backend), heads)
        if return_maps:
            return out, self.maps(heads, causal=causal, mask=mask)
        return out

    def _default_rotary(self, x: Tensor, context: Tensor | None, cache: Cache | None) -> Rotary:
        """Return cos and sin at positions 0..T-1, or an empty table without `rope_theta`."""
        if self.rope_theta is None:
            return {}
        if context is not None or cache is not None:
            what = "a context" if cache is None else "a cache"
            raise ValueError(
                f"rotary: with {what}, only the caller knows the positions; pass rotary= (and "
                "context_rotary= for a context)"
            )
        T, theta = x.shape[1], self.rope_theta
        return {w: rotary_table(T, w, theta, device=x.device) for w in self.rotary_widths}

    def extra_repr(self) -> str:
        """Show the heads and options."""
        heads = ", ".join(f"{name}={n}" for name, n in self.head_counts.items())
        return f"{heads}, head_dim={self.head_dim}, {self.options}"


def _four_dimensions(mask: Tensor, B: int, Tk: int) -> Tensor:
    """Return a mask with four dimensions; raise for one that could mean two things."""
    boolean = mask.dtype == torch.bool
    if not boolean and not mask.is_floating_point():
        raise ValueError(f"mask: got {mask.dtype}, expected bool (True: attend) or additive floats")
    if mask.dim() == 2 and boolean and mask.shape == (B, Tk):
        return mask[:, None, None, :]
    if mask.dim() != 4:
        raise ValueError(
            f"mask: got {mask.dtype} of shape {tuple(mask.shape)}, expected bool [B, Tk] = "
            f"{[B, Tk]}, or 4 dimensions that broadcast to [B, heads, T, Tk]"
        )
    return mask


def _check_ranges(head_dim: int, layer: int, eps: float, rope_theta: float | None) -> None:
    if head_dim < 1:
        raise ValueError(f"head_dim: got {head_dim}, expected at least 1")
    if layer < 0:
        raise ValueError(f"layer: got {layer}, expected 0 for the first")
    if eps <= 0 or (rope_theta is not None and rope_theta <= 0):
        raise ValueError(f"eps, rope_theta: got {eps}, {rope_theta}, expected numbers above 0")


def _check_heads(hidden: int, heads: int, kv_heads: int, head_dim: int | None) -> None:
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
