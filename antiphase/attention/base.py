"""The base of all mechanisms: how a layer is constructed and called.

A mechanism implements four steps:

    heads = project(inputs)     W_Q, W_K, W_V, RoPE, cache: tokens to queries, keys, values per head
    o = attend(heads)           [B, h, Tq, dv]: an op of `antiphase.ops`
    out = output(o, heads)      [B, Tq, D]: norm or gate where there is one, then W_O
    maps(heads)                 the attention maps that `attend` never materialises

In a model, `attend` can be replaced by one call of an attention function that is registered with
transformers (SDPA, flash attention, flex attention, a server's own): `function_heads` gives its
queries, keys and values, `function_output` the output of each head.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from antiphase.attention.constructor_checks import (
    check_heads,
    check_masking,
    check_ranges,
    check_supported,
)
from antiphase.attention.heads import Cache, Heads, Inputs, Rotary
from antiphase.attention.masking import Masking, four_dimensions
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
        window: sliding window: each token attends to so many tokens, the last of which is itself;
            None for all. Needs causal calls.
        keep_first: with a window, so many first tokens (of the token's document) stay visible.
        dropout: probability to drop a weight of the map that is applied to V, in training only.
        softcap: softmax scores s become softcap * tanh(s / softcap); None for no cap.
        **options: the mechanism's own, the fields of its `Options`.

    Raises:
        ValueError: sizes that do not fit together, or an option that the mechanism does not have.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1  # raised by hand when what the layer computes changes
    Options: ClassVar[type] = NoOptions
    static_cache: ClassVar[bool] = True  # keys and values fit transformers' static cache
    running_state: ClassVar[bool] = False  # decoding keeps a state beside keys and values
    has_maps: ClassVar[bool] = True  # False: `maps` raises, and there is nothing to drop weights of
    has_softmax: ClassVar[bool] = True  # of scores, which a soft-cap bounds
    causal_only: ClassVar[bool] = False  # reads tokens in their order: no context, no full map
    row_by_row: ClassVar[bool] = True  # a row of the maps depends on no other query
    full_attention_every: ClassVar[int] = 0  # of a model's layers with a window: 4 is every fourth
    # How tensor parallelism splits the layer by heads: transformers' style of each part. What is
    # not named is complete on every device; `unsplit` says why, where that is all of it.
    tensor_parallel: ClassVar[dict[str, str]] = {}
    unsplit: ClassVar[str] = ""
    is_causal: bool = True  # read by transformers' attention functions, as is `config`
    config: Any = None  # of the model that the layer is part of
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
        window: int | None = None,
        keep_first: int = 0,
        dropout: float = 0.0,
        softcap: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        check_heads(hidden_size, num_heads, num_kv_heads, head_dim)
        self.hidden_size, self.num_heads, self.num_kv_heads = hidden_size, num_heads, num_kv_heads
        self.head_dim = hidden_size // num_heads if head_dim is None else head_dim
        self.layer, self.bias, self.eps, self.rope_theta = layer, bias, eps, rope_theta
        check_ranges(self.head_dim, layer, eps, rope_theta)
        self.window, self.keep_first = window, keep_first
        self.dropout, self.softcap = dropout, softcap
        check_masking(window, keep_first, dropout, softcap)
        check_supported(self)
        self.options: Any = build(f"mechanism {self.name!r}", self.Options, options)
        self.build()
        self.scaling = self.head_dim**-0.5
        if rope_theta is not None:
            self.check_rotary_widths("leave rope_theta out")

    @abstractmethod
    def build(self) -> None:
        """Create the layer's parameters."""

    @abstractmethod
    def project(self, inputs: Inputs) -> Heads:
        """Return queries, keys and values per head, with RoPE applied and the cache extended."""

    @abstractmethod
    def attend(self, heads: Heads, masking: Masking, backend: str) -> Tensor:
        """Return the output of each head before its norm, [B, h, Tq, dv].

        It is the map `difference` of `maps`, after dropout, applied to V. With running noise, this
        call stores the new state in the cache, so it is made once per `project`.

        Args:
            heads: what `project` returned.
            masking: of this call.
            backend: of `antiphase.ops`.
        """

    @abstractmethod
    def output(self, o: Tensor, heads: Heads) -> Tensor:
        """Return the layer's output [B, Tq, D] from the heads' outputs [B, h, Tq, dv]."""

    @abstractmethod
    def maps(self, heads: Heads, masking: Masking) -> dict[str, Tensor]:
        """Return the attention maps [B, h, Tq, Tk] by name.

        Args:
            heads: what `project` returned.
            masking: of this call.

        Returns:
            `signal` (A1) and `difference` (the map that is applied to V, before dropout); with a
            noise term also `noise` (A2) and `lam` [B, h, Tq, 1]. Some mechanisms add others.
        """

    def masking(
        self, *, causal: bool, mask: Tensor | None = None, documents: Tensor | None = None
    ) -> Masking:
        """Return what `attend` and `maps` take, with this layer's window, soft-cap and dropout.

        Args:
            causal: aligned to the last key. The window is applied only then: a mask for
                causal=False has to contain it.
            mask: None or [B | 1, h | 1, Tq | 1, Tk], boolean (True: attend) or additive.
            documents: document id of every key, [B | 1, Tk].
        """
        return Masking(
            causal=causal,
            mask=mask,
            documents=documents,
            window=self.window if causal else None,
            keep_first=self.keep_first if causal else 0,
            softcap=self.softcap,
            dropout=self.dropout if self.training else 0.0,
        )

    def applied_map(self, maps: dict[str, Tensor]) -> Tensor:
        """Return the map that is applied to V, [B, h, Tq, Tk]: A1 - lam A2.

        A mechanism that makes another one of the two (`rectified`, `dint`) overrides this. Analyses
        call it to apply a map whose noise they replaced.

        Args:
            maps: what `maps` returned, with `noise` and `lam`; perhaps with another noise map.
        """
        return maps["signal"] - maps["lam"] * maps["noise"]

    def output_scale(self, rms: float) -> float:
        """Return the factor of W_O's scaled start, for a mechanism whose heads are not of that RMS.

        Args:
            rms: of the heads' outputs in a new layer of the other mechanisms, D channels in all.
        """
        return 1.0

    @property
    def layer_idx(self) -> int:
        """Return the layer's index, by transformers' name for it."""
        return self.layer

    @property
    def function_head_counts(self) -> tuple[int, int] | None:
        """Return the numbers of query and of key/value heads in `function_heads`.

        All have the width `head_dim`. None: one call of standard attention cannot compute this
        mechanism.
        """
        return None

    @property
    def num_key_value_groups(self) -> int:
        """Return the number of query heads per key/value head, for an attention function."""
        q_heads, kv_heads = self.function_head_counts or (1, 1)
        return q_heads // kv_heads

    def function_heads(self, heads: Heads) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries [B, Hq, Tq, d], keys and values [B, Hkv, Tk, d] of standard attention.

        Args:
            heads: what `project` returned.
        """
        raise NotImplementedError(f"{self.name} is not computed by one call of standard attention")

    def function_output(self, o: Tensor, heads: Heads) -> Tensor:
        """Return the output of each head before its norm, [B, h, Tq, dv].

        Args:
            o: standard attention of `function_heads`, [B, Hq, Tq, d].
            heads: what `project` returned.
        """
        raise NotImplementedError(f"{self.name} is not computed by one call of standard attention")

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
        documents: Tensor | None = None,
        rotary: Rotary | None = None,
        context_rotary: Rotary | None = None,
        cache: Cache | None = None,
        backend: str = "auto",
        return_maps: bool = False,
        function_arguments: dict[str, Any] | None = None,
    ) -> Tensor | tuple[Tensor, dict[str, Tensor]]:
        """Return the layer's output, and with `return_maps` its attention maps.

        Args:
            x: [B, T, D], the tokens of the queries.
            context: [B, Tk, D], the tokens of keys and values in cross-attention; x by default.
            causal: each token attends to itself and earlier ones; only without a context.
            mask: boolean padding mask [B, Tk], True where a key is a real token; or 4 dimensions
                that broadcast to [B, h, T, Tk], boolean (True: attend) or additive.
            documents: packed sequences: the document id of every key, [B, Tk] or [Tk]. A token
                attends only to those of its own document, a run of equal ids.
            rotary: RoPE's cos and sin by head width, at the queries' positions.
            context_rotary: the same for the keys of a context; `rotary` by default.
            cache: of this layer; new keys and values are appended to it. Where it keeps only the
                last keys, so it does with `mask` and `documents`.
            backend: of `antiphase.ops`: "auto", "reference", "sdpa" or "fused_cpu".
            return_maps: return (output, maps) with the maps of `maps`. With gradients enabled, the
                output is computed from `difference`, so that the map gets one.
            function_arguments: call the attention function that is registered with transformers
                under the name `backend`, with these keyword arguments and `mask` as it takes it;
                None for an op. Only without a context and without `return_maps`.

        Returns:
            [B, T, D], or with `return_maps` that and a dictionary of maps [B, h, T, Tk].
        """
        self._check_call(context, causal, mask, documents)
        if rotary is None:
            rotary = self._default_rotary(x, context, cache)
        key_rotary = rotary if context_rotary is None else context_rotary
        context = x if context is None else context
        heads = self.project(Inputs(x, context, rotary, key_rotary, cache, mask, documents))
        if function_arguments is not None:
            from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

            # vLLM reads this source: it wants one call of a function from here, and self.scaling.
            attention_function = ALL_ATTENTION_FUNCTIONS.get_interface(backend, None)
            q, k, v = self.function_heads(heads)
            o, _ = attention_function(
                self,
                q,
                k,
                v,
                mask,
                dropout=self.dropout if self.training else 0.0,
                scaling=self.scaling,
                sliding_window=self.window,
                softcap=self.softcap,
                **function_arguments,
            )
            return self.output(self.function_output(_by_head(o, q), heads), heads)
        Tk = heads.past + heads.k.shape[2]
        if cache is not None:
            mask, documents = (None if t is None else t[..., -Tk:] for t in (mask, documents))
        masking = self.masking(
            causal=causal,
            mask=None if mask is None else four_dimensions(mask, x.shape[0], Tk),
            documents=None if documents is None else documents.reshape(-1, documents.shape[-1]),
        )
        maps = self.maps(heads, masking) if return_maps else {}
        in_graph = return_maps and torch.is_grad_enabled()
        if not in_graph or (self.running_state and cache is not None):  # stores the state
            o = self.attend(heads, masking, backend)
        if in_graph:
            o = masking.apply(maps["difference"], heads.v)
        out = self.output(o, heads)
        return (out, maps) if return_maps else out

    def _check_call(
        self,
        context: Tensor | None,
        causal: bool,
        mask: Tensor | None,
        documents: Tensor | None,
    ) -> None:
        if self.causal_only and (context is not None or not causal):
            raise ValueError(
                f"causal: {self.name} reads tokens in their order; pass causal=True and no context"
            )
        if context is not None and causal:
            raise ValueError("causal: a context has no order with x; pass causal=False")
        if context is not None and documents is not None:
            raise ValueError(
                "documents: are those of the tokens x, which a context does not have; pass a mask"
            )
        if self.window is not None and not causal and (mask is None or mask.dim() != 4):
            raise ValueError(
                f"causal: got False in a layer with a window of {self.window}; pass causal=True, "
                "or a mask of 4 dimensions that contains the window"
            )

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
        names = ("window", "keep_first", "dropout", "softcap")
        masking = "".join(f", {n}={getattr(self, n)}" for n in names if getattr(self, n))
        return f"{heads}, head_dim={self.head_dim}{masking}, {self.options}"


def _by_head(o: Tensor, q: Tensor) -> Tensor:
    """Return what an attention function gave, [B, T, H, d] or flattened, like q [B, H, T, d]."""
    B, H, T, d = q.shape
    if o.numel() != q.numel():
        raise ValueError(
            f"attention function: got {tuple(o.shape)} for queries of {tuple(q.shape)}; a server "
            f"has to count {H} query heads of width {d} (docs/serving.md)"
        )
    return o.reshape(B, T, H, d).transpose(1, 2)
