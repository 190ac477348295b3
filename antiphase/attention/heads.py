"""What passes between the steps of a layer: inputs, heads and KV cache; and tokens as heads."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from antiphase.ops import rotate

Rotary = dict[int, tuple[Tensor, Tensor]]
"""RoPE's cos and sin, each [B | 1, T, width], by the width of the heads that they rotate."""


class Cache(Protocol):
    """The KV cache of one layer, as a mechanism uses it."""

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values [B, heads, T, width]; return all that are cached now."""

    def constant(self, compute: Callable[[], Tensor]) -> Tensor:
        """Return a value of the parameters alone; decoding computes it once per sequence."""

    def state(self) -> Tensor | None:
        """Return the running state stored last, None before the first."""

    def store(self, state: Tensor) -> None:
        """Store a running state of constant size in place of the last one."""


@dataclass
class Inputs:
    """What a layer receives: queries come from `x`, keys and values from `context`."""

    x: Tensor  # [B, Tq, D]
    context: Tensor  # [B, Tk, D]; x itself in self-attention
    rotary: Rotary  # at the queries' positions; empty without RoPE
    key_rotary: Rotary  # at the keys' positions
    cache: Cache | None
    mask: Tensor | None = None  # of all keys, as `Attention.forward` takes it
    documents: Tensor | None = None  # of all keys, [B, Tk] or [Tk]


@dataclass
class Heads:
    """Queries, keys and values per head, after RoPE and the cache.

    `q`, `k` give the signal map; `q2`, `k2` the noise map, which `lam` scales before it is
    subtracted. Four mechanisms use `q2`, `k2` for something else, as the fields say.
    """

    x: Tensor  # [B, Tq, D], the tokens of the queries
    q: Tensor  # [B, h, Tq, d]
    k: Tensor  # [B, h_kv, Tk, d]
    v: Tensor  # [B, h_kv, Tk, dv]
    # low_rank_noise: positive features; signed_mask: the queries of its sign.
    q2: Tensor | None = None  # [B, h_n, Tq, d2]
    # low_rank_noise: features of this call's keys, [B, h_kv, new, r]; signed_mask: the keys of its
    # sign; fixed_noise: log g of this call's keys, [B, h_kv, new]; delta: beta and decay of this
    # call's keys, [B, h_kv, new, 2].
    k2: Tensor | None = None  # [B, h_kv_n, Tk, d2]
    lam: Tensor | None = None  # broadcasts to [B, h, Tq, 1]
    new: int = 0  # how many of the Tk keys this call added; only running states need it
    past: int = 0  # earlier keys that are not among the Tk: only a state is left of them
    cache: Cache | None = None
    gate: Tensor | None = None  # [B, h, Tq, dv], of grouped_latent: multiplies the output
    window: Tensor | None = None  # of delta: the last tokens that its convolution has seen

    @property
    def v_new(self) -> Tensor:
        """Return the values that this call added, [B, h_kv, new, dv]."""
        return self.v[:, :, self.v.shape[2] - self.new :]

    @property
    def diff_arguments(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return (q1, k1, q2, k2, v, lam), the arguments of `diff_attention`."""
        assert self.q2 is not None
        assert self.k2 is not None
        assert self.lam is not None
        return self.q, self.k, self.q2, self.k2, self.v, self.lam


def rope(t: Tensor, width: int, rotary: Rotary) -> Tensor:
    """Apply RoPE to projected heads.

    Args:
        t: [B, T, heads * width].
        width: of each head.
        rotary: cos and sin by width; empty for no RoPE.

    Returns:
        [B, T, heads * width].
    """
    if not rotary:
        return t
    return rotate(t.unflatten(-1, (-1, width)), *rotary[width]).flatten(2)


def split_heads(t: Tensor, width: int) -> Tensor:
    """Return [B, T, heads * width] as [B, heads, T, width], without a copy."""
    return t.unflatten(-1, (-1, width)).transpose(1, 2)


def merge_heads(o: Tensor) -> Tensor:
    """Return [B, heads, T, width] as [B, T, heads * width], the input of W_O."""
    return o.transpose(1, 2).flatten(2)


def count_tokens(cache: Cache | None, x: Tensor) -> int:
    """Count the tokens x [B, T, D] in a cache that keeps a running state and no keys.

    Returns:
        The number of tokens before them.
    """
    if cache is None:
        return 0
    nothing = x.new_empty(x.shape[0], 1, x.shape[1], 0)  # a cache's length is that of its keys
    return cache.append(nothing, nothing)[0].shape[2] - x.shape[1]


def extend_cache(cache: Cache | None, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Append keys and values [B, heads, T, width] to the cache, if any; return all there are."""
    return (k, v) if cache is None else cache.append(k, v)
