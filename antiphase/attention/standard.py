"""Standard attention: O = softmax(Q K^T / sqrt(d)) V (arXiv 1706.03762).

Options give the baselines that the differential forms are measured against: a head norm without
subtraction, and half-dim, twice the heads, which isolates the finer head split.
"""

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from antiphase.attention.base import Attention, remember, split_heads
from antiphase.attention.heads import Heads, Inputs
from antiphase.attention.parts import HeadNorm
from antiphase.ops import attention, attention_map


@dataclass(frozen=True)
class StandardOptions:
    """`head_norm`: "none", "rms" or one learned "scalar". `half_dim`: 2h heads of d/2."""

    head_norm: Literal["rms", "scalar", "none"] = "none"
    half_dim: bool = False


class OneMap(Attention):
    """The body of a mechanism with one softmax map a head: projections, cache and the op."""

    def build(self) -> None:
        d = self.head_dim
        self.q_proj = self.linear(self.hidden_size, self.num_heads * d)
        self.k_proj = self.linear(self.hidden_size, self.num_kv_heads * d)
        self.v_proj = self.linear(self.hidden_size, self.num_kv_heads * d)
        self.o_proj = self.linear(self.num_heads * d, self.hidden_size)

    def project(self, inputs: Inputs) -> Heads:
        x, context = inputs.x, inputs.context
        d = self.head_dim
        q = split_heads(self.q_proj(x), d, inputs.rotary).transpose(1, 2)
        k = split_heads(self.k_proj(context), d, inputs.key_rotary).transpose(1, 2)
        v = split_heads(self.v_proj(context), d).transpose(1, 2)
        k, v = remember(inputs.cache, k, v)
        return Heads(x, q, k, v)

    def extras(self, heads: Heads) -> dict[str, Any]:
        """Return what the op takes beside q, k and v."""
        return {}

    def mix(self, heads: Heads, *, causal: bool, mask: Tensor | None, backend: str) -> Tensor:
        extras = self.extras(heads)
        return attention(
            heads.q, heads.k, heads.v, causal=causal, mask=mask, backend=backend, **extras
        )

    def maps(self, heads: Heads, *, causal: bool, mask: Tensor | None) -> dict[str, Tensor]:
        A = attention_map(heads.q, heads.k, heads.v, causal=causal, mask=mask, **self.extras(heads))
        return {"signal": A, "difference": A}

    @property
    def cache_numbers(self) -> int:
        return 2 * self.num_kv_heads * self.head_dim

    @property
    def head_counts(self) -> dict[str, int]:
        return {"heads": self.num_heads, "kv_heads": self.num_kv_heads}


class Standard(OneMap):
    """Standard attention, with its head norm and half-dim baselines."""

    name = "standard"
    Options = StandardOptions

    def build(self) -> None:
        if self.options.half_dim:
            if self.head_dim % 2:
                raise ValueError(
                    f"half_dim: heads of width {self.head_dim} cannot be halved; use an even width"
                )
            self.head_dim //= 2
            self.num_heads, self.num_kv_heads = 2 * self.num_heads, 2 * self.num_kv_heads
        super().build()
        self.norm = HeadNorm(self.options.head_norm, self.head_dim, 1.0, self.eps)

    def merge(self, o: Tensor, heads: Heads) -> Tensor:
        return super().merge(self.norm(o), heads)
