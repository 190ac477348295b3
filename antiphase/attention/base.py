"""What every mechanism shares. A mechanism says how it projects, mixes and writes down its maps.

heads = project(x)      tokens to queries, keys, values by head
o = mix(heads)          [B, h, Tq, dv], an op of `antiphase.ops`
out = merge(o, heads)   norm or gate where there is one, then W_O
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from antiphase.attention.heads import Cache, Heads, Inputs, Rotary
from antiphase.ops import rotary_table, rotate
from antiphase.options import build


@dataclass(frozen=True)
class NoOptions:
    """A mechanism without options."""


class Attention(nn.Module, ABC):
    """Base of all mechanisms: `layer(x, causal=..., context=None, mask=None)` on [B, T, D].

    `num_heads` and `num_kv_heads` are those of the standard layer that the mechanism stands in for;
    it derives its own. `layer` counts from 0. With `rope_theta`, positions 0..T-1 are turned into
    queries and keys here; a model that knows its positions passes `rotary` instead.
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
        _check_numbers(self.head_dim, layer, eps, rope_theta)
        self.options: Any = build(f"mechanism {self.name!r}", self.Options, options)
        self.build()
        if rope_theta is not None and any(width % 2 for width in self.rotary_widths):
            raise ValueError(
                f"{self.name}: heads of width {self.rotary_widths} cannot be turned by RoPE, which "
                "wants even widths; change head_dim or leave rope_theta out"
            )

    @abstractmethod
    def build(self) -> None:
        """Make the layer's parameters."""

    @abstractmethod
    def project(self, inputs: Inputs) -> Heads:
        """Return queries, keys and values by head; keys and values go into the cache."""

    @abstractmethod
    def mix(self, heads: Heads, *, causal: bool, mask: Tensor | None, backend: str) -> Tensor:
        """Return each head's output [B, h, Tq, dv]: the difference of the maps, times V."""

    @abstractmethod
    def maps(self, heads: Heads, *, causal: bool, mask: Tensor | None) -> dict[str, Tensor]:
        """Return the maps [B, h, Tq, Tk] by name; `difference` is the one that meets V."""

    def merge(self, o: Tensor, heads: Heads) -> Tensor:
        """Return the heads' outputs, put together: [B, Tq, D]."""
        return self.o_proj(o.transpose(1, 2).flatten(2))

    @property
    def rotary_widths(self) -> tuple[int, ...]:
        """Return the widths of the heads that positions turn."""
        return (self.head_dim,)

    @property
    @abstractmethod
    def cache_numbers(self) -> int:
        """Return how many numbers the cache keeps for each token."""

    @property
    @abstractmethod
    def head_counts(self) -> dict[str, int]:
        """Return the heads that this mechanism derived from the baseline's."""

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
        """Return the layer's output [B, T, D], and with `return_maps` its maps by name.

        `context` [B, Tk, D] makes it cross-attention. `mask` is [B, Tk], True where a key counts,
        or broadcasts to [B, h, T, Tk] (boolean or additive). `rotary` turns queries and keys by
        cos and sin of their width; `context_rotary` the keys of a context, if it is another.
        """
        if context is not None and causal:
            raise ValueError("causal: a context has no order with x; pass causal=False")
        if rotary is None:
            rotary = self._own_rotary(x, context, cache)
        key_rotary = rotary if context_rotary is None else context_rotary
        context = x if context is None else context
        heads = self.project(Inputs(x, context, rotary, key_rotary, cache))
        mask = None if mask is None else _four_dimensions(mask, len(x), heads.k.shape[2])
        out = self.merge(self.mix(heads, causal=causal, mask=mask, backend=backend), heads)
        if return_maps:
            return out, self.maps(heads, causal=causal, mask=mask)
        return out

    def _own_rotary(self, x: Tensor, context: Tensor | None, cache: Cache | None) -> Rotary:
        if self.rope_theta is None:
            return {}
        if context is not None or cache is not None:
            what = "a context" if cache is None else "a cache"
            raise ValueError(
                f"rotary: with {what}, positions are the caller's to know; pass rotary= (and "
                "context_rotary= for a context)"
            )
        T, theta = x.shape[1], self.rope_theta
        return {w: rotary_table(T, w, theta, device=x.device) for w in self.rotary_widths}

    def linear(self, inputs: int, outputs: int, *, bias: bool | None = None) -> nn.Linear:
        """Return a projection with the layer's habit of bias."""
        return nn.Linear(inputs, outputs, bias=self.bias if bias is None else bias)

    def extra_repr(self) -> str:
        """Show the heads and options."""
        heads = ", ".join(f"{name}={n}" for name, n in self.head_counts.items())
        return f"{heads}, head_dim={self.head_dim}, {self.options}"


def split_heads(t: Tensor, width: int, rotary: Rotary | None = None) -> Tensor:
    """Return [B, T, heads * width] as [B, T, heads, width], turned by its positions if given."""
    t = t.unflatten(-1, (-1, width))
    return rotate(t, *rotary[width]) if rotary else t


def remember(cache: Cache | None, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return all keys and values: those of the cache, then these, [B, heads, T, width]."""
    return (k, v) if cache is None else cache.append(k, v)


def key_padding(mask: Tensor | None, name: str) -> Tensor | None:
    """Return a mask as [B, Tk], True where a key counts; refuse one that differs by query."""
    if mask is None:
        return None
    if mask.dtype != torch.bool or mask.shape[1:3] != (1, 1):
        raise ValueError(
            f"mask: got {mask.dtype} of shape {tuple(mask.shape)}; {name}, with its running noise "
            "branch, takes only a boolean padding mask [B, Tk] beside causal=True or False"
        )
    return mask[:, 0, 0]


def _four_dimensions(mask: Tensor, B: int, Tk: int) -> Tensor:
    """Return a mask with all four dimensions; refuse what could be read in two ways."""
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


def _check_numbers(head_dim: int, layer: int, eps: float, rope_theta: float | None) -> None:
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
