"""Control: one softmax with a learned sign, A[i, j] = softmax(q k^T)[i, j] tanh(a_i . b_j + c).

The factor lies in [-1, 1] and comes from a bilinear form of `rank` channels: weights leave the
simplex and may turn negative without a second map. The map is written down, so memory grows as T^2.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from antiphase.attention.base import remember, split_heads
from antiphase.attention.heads import Heads, Inputs
from antiphase.attention.parts import Float32Parameters
from antiphase.attention.standard import OneMap
from antiphase.ops import attention_map, repeat_heads, statistics_dtype


@dataclass(frozen=True)
class SignedMaskOptions:
    """`rank` channels of the form that gives the sign."""

    rank: int = 8

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"rank: got {self.rank}, expected at least 1")


class SignOffset(Float32Parameters):
    """c, a number a head. It starts at 1, so that the layer starts near standard attention."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.offset = nn.Parameter(torch.empty(heads, dtype=torch.float32))
        self.init_parameters()

    def init_parameters(self) -> None:
        nn.init.ones_(self.offset)


class SignedMask(OneMap):
    """One softmax map times a signed factor for each query and key."""

    name = "signed_mask"
    Options = SignedMaskOptions

    def build(self) -> None:
        super().build()
        r = self.options.rank
        self.sign_q_proj = self.linear(self.hidden_size, self.num_heads * r, bias=False)
        self.sign_k_proj = self.linear(self.hidden_size, self.num_kv_heads * r, bias=False)
        self.sign_offset = SignOffset(self.num_heads)

    def project(self, inputs: Inputs) -> Heads:
        x, context = inputs.x, inputs.context
        d, r = self.head_dim, self.options.rank
        q = split_heads(self.q_proj(x), d, inputs.rotary).transpose(1, 2)
        k = split_heads(self.k_proj(context), d, inputs.key_rotary)
        v = split_heads(self.v_proj(context), d).transpose(1, 2)
        a = split_heads(self.sign_q_proj(x), r).transpose(1, 2)
        b = split_heads(self.sign_k_proj(context), r)
        both, v = remember(inputs.cache, torch.cat([k, b], dim=-1).transpose(1, 2), v)
        k, b = both.split([d, r], dim=-1)
        return Heads(x, q, k, v, q2=a, k2=b)

    def mix(self, heads: Heads, *, causal: bool, mask: Tensor | None, backend: str) -> Tensor:
        A = self.maps(heads, causal=causal, mask=mask)["difference"]
        return (A @ repeat_heads(heads.v, self.num_heads).to(A.dtype)).to(heads.v.dtype)

    def maps(self, heads: Heads, *, causal: bool, mask: Tensor | None) -> dict[str, Tensor]:
        signal = attention_map(heads.q, heads.k, heads.v, causal=causal, mask=mask)
        assert heads.q2 is not None
        assert heads.k2 is not None
        dtype = statistics_dtype(heads.q.dtype)
        form = heads.q2.to(dtype) @ repeat_heads(heads.k2, self.num_heads).to(dtype).mT
        sign = torch.tanh(form + self.sign_offset.offset[:, None, None])
        return {"signal": signal, "sign": sign, "difference": signal * sign}

    @property
    def cache_numbers(self) -> int:
        return self.num_kv_heads * (2 * self.head_dim + self.options.rank)
