"""Standard attention (arXiv 1706.03762): O = softmax(Q K^T / sqrt(d)) V W_O.

Its options are the baselines that the differential forms are compared with: a head norm without
the subtraction, and heads of half the width, twice as many, which isolates the finer head split.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from antiphase.attention.base import Attention
from antiphase.attention.heads import Heads, Inputs, extend_cache, merge_heads, rope, split_heads
from antiphase.attention.masking import Masking
from antiphase.attention.parts import HeadNorm
from antiphase.attention.projections import apply_linear, by_heads
from antiphase.ops import attention, attention_map


@dataclass(frozen=True)
class StandardOptions:
    """Options of `Standard`.

    Args:
        head_norm: "none", "rms" or one learned "scalar", per head before W_O.
        half_dim: 2h heads of width d/2 from the same weights.
    """

    head_norm: Literal["rms", "scalar", "none"] = "none"
    half_dim: bool = False


class Standard(Attention):
    """Standard softmax attention, the baseline."""

    name = "standard"
    Options = StandardOptions
    tensor_parallel = by_heads(shared=("norm",))

    def build(self) -> None:
        if self.options.half_dim:
            if self.head_dim % 2:
                raise ValueError(
                    f"half_dim: heads of width {self.head_dim} cannot be halved; use an even width"
                )
            self.head_dim //= 2
            self.num_heads, self.num_kv_heads = 2 * self.num_heads, 2 * self.num_kv_heads
        D, d, bias = self.hidden_size, self.head_dim, self.bias
        self.q_proj = nn.Linear(D, self.num_heads * d, bias)
        self.k_proj = nn.Linear(D, self.num_kv_heads * d, bias)
        self.v_proj = nn.Linear(D, self.num_kv_heads * d, bias)
        self.o_proj = nn.Linear(self.num_heads * d, D, bias)
        # Factor 1: there is no lam_init, and nothing was subtracted.
        self.norm = HeadNorm(self.options.head_norm, d, 1.0, self.eps)

    def project(self, inputs: Inputs) -> Heads:
        x, context, d = inputs.x, inputs.context, self.head_dim
        q = split_heads(rope(apply_linear(self.q_proj, x), d, inputs.rotary), d)  # [B, h, Tq, d]
        k = split_heads(rope(apply_linear(self.k_proj, context), d, inputs.key_rotary), d)
        v = split_heads(apply_linear(self.v_proj, context), d)
        k, v = extend_cache(inputs.cache, k, v)  # [B, h_kv, Tk, d]
        return Heads(x, q, k, v)

    def attend(self, heads: Heads, masking: Masking, backend: str) -> Tensor:
        return attention(heads.q, heads.k, heads.v, **masking.of_output, backend=backend)

    def output(self, o: Tensor, heads: Heads) -> Tensor:
        return apply_linear(self.o_proj, merge_heads(self.norm(o)))

    def maps(self, heads: Heads, masking: Masking) -> dict[str, Tensor]:
        A = attention_map(heads.q, heads.k, heads.v, **masking.of_maps)
        return {"signal": A, "difference": A}

    @property
    def function_head_counts(self) -> tuple[int, int]:
        return self.num_heads, self.num_kv_heads

    def function_heads(self, heads: Heads) -> tuple[Tensor, Tensor, Tensor]:
        return heads.q, heads.k, heads.v

    def function_output(self, o: Tensor, heads: Heads) -> Tensor:
        return o
