"""Control: one softmax map times a learned sign, without a second map.

    A[i, j] = softmax(q k^T / sqrt(d))[i, j] tanh(a_i . b_j + c)

The factor lies in [-1, 1] and comes from a bilinear form of `rank` channels, so that attention
weights may be negative. The map is materialised: memory grows with T^2.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from antiphase.attention.base import Attention
from antiphase.attention.heads import Heads, Inputs, extend_cache, merge_heads, rope, split_heads
from antiphase.attention.masking import Masking
from antiphase.attention.parts import Float32Parameters, check_at_least_one
from antiphase.attention.projections import apply_linear
from antiphase.ops import attention_map, repeat_heads, statistics_dtype, without_autocast


@dataclass(frozen=True)
class SignedMaskOptions:
    """Options of `SignedMask`.

    Args:
        rank: channels of the bilinear form that gives the sign.
    """

    rank: int = 8

    def __post_init__(self) -> None:
        check_at_least_one("rank", self.rank)


class SignOffset(Float32Parameters):
    """c, one value per head."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.offset = nn.Parameter(torch.empty(heads, dtype=torch.float32))
        self.init_parameters()

    def init_parameters(self) -> None:
        nn.init.ones_(self.offset)  # tanh(1) = 0.76: the layer starts near standard attention


class SignedMask(Attention):
    """One softmax map times a signed factor per query and key."""

    name = "signed_mask"
    Options = SignedMaskOptions
    unsplit = "the offset of its sign is one parameter per head, and plans split projections only"

    def build(self) -> None:
        D, d, bias, r = self.hidden_size, self.head_dim, self.bias, self.options.rank
        self.q_proj = nn.Linear(D, self.num_heads * d, bias)
        self.k_proj = nn.Linear(D, self.num_kv_heads * d, bias)
        self.v_proj = nn.Linear(D, self.num_kv_heads * d, bias)
        self.o_proj = nn.Linear(self.num_heads * d, D, bias)
        self.sign_q_proj = nn.Linear(D, self.num_heads * r, bias=False)  # c is their bias
        self.sign_k_proj = nn.Linear(D, self.num_kv_heads * r, bias=False)
        self.sign_offset = SignOffset(self.num_heads)

    def project(self, inputs: Inputs) -> Heads:
        x, context, d, r = inputs.x, inputs.context, self.head_dim, self.options.rank
        q = split_heads(rope(apply_linear(self.q_proj, x), d, inputs.rotary), d)  # [B, h, Tq, d]
        k = rope(apply_linear(self.k_proj, context), d, inputs.key_rotary).unflatten(-1, (-1, d))
        v = split_heads(apply_linear(self.v_proj, context), d)
        sign_q = split_heads(apply_linear(self.sign_q_proj, x), r)  # [B, h, Tq, r]
        sign_k = apply_linear(self.sign_k_proj, context).unflatten(-1, (-1, r))
        keys = torch.cat([k, sign_k], dim=-1).transpose(1, 2)  # cached side by side
        keys, v = extend_cache(inputs.cache, keys, v)
        k, sign_k = keys.split([d, r], dim=-1)
        return Heads(x, q, k, v, q2=sign_q, k2=sign_k)

    def attend(self, heads: Heads, masking: Masking, backend: str) -> Tensor:
        return masking.apply(self.maps(heads, masking)["difference"], heads.v)

    def output(self, o: Tensor, heads: Heads) -> Tensor:
        return apply_linear(self.o_proj, merge_heads(o))

    def maps(self, heads: Heads, masking: Masking) -> dict[str, Tensor]:
        A = attention_map(heads.q, heads.k, heads.v, **masking.of_maps)
        assert heads.q2 is not None
        assert heads.k2 is not None
        dtype = statistics_dtype(heads.q.dtype)  # as the softmax: fp32, or fp64 for fp64
        with without_autocast(A.device):
            form = heads.q2.to(dtype) @ repeat_heads(heads.k2, self.num_heads).to(dtype).mT
        sign = torch.tanh(form + self.sign_offset.offset[:, None, None])
        return {"signal": A, "sign": sign, "difference": A * sign}

    @property
    def cache_elements_per_token(self) -> int:
        return self.num_kv_heads * (2 * self.head_dim + self.options.rank)
