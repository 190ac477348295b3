"""Low-rank noise: V1 whose noise map is causal linear attention with `rank` positive features.

    A2[i, j] = phi(q2_i) . phi(k2_j) / sum_{j' <= i} phi(q2_i) . phi(k2_j'),  phi = softplus

A2 has rank <= r before the causal mask, and in any block of rows >= m and columns < m. It costs
O(T r d), so the layer has one softmax map.
"""

from dataclasses import dataclass

from torch import Tensor, nn

from antiphase.attention.base import Attention
from antiphase.attention.heads import Heads, Inputs, extend_cache, merge_heads, rope, split_heads
from antiphase.attention.masking import Masking
from antiphase.attention.parts import (
    HeadNorm,
    Lambda,
    NoiseOptions,
    check_at_least_one,
    halve_heads,
    per_row,
    softplus,
)
from antiphase.attention.projections import apply_linear, by_heads
from antiphase.attention.running_noise import (
    needs_map,
    running_arguments,
    store_state,
    visible_noise,
)
from antiphase.ops import attention, attention_map, linear_attention, linear_map


@dataclass(frozen=True)
class LowRankNoiseOptions(NoiseOptions):
    """Options of `LowRankNoise`: those of V1, and the rank.

    Args:
        rank: features of the noise's queries and keys.
    """

    rank: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least_one("rank", self.rank)


class LowRankNoise(Attention):
    """V1 with noise from linear attention: one softmax map per head, a running state to decode."""

    name = "low_rank_noise"
    Options = LowRankNoiseOptions
    tensor_parallel = by_heads("noise_q_proj", "noise_k_proj", shared=("lam", "norm"))
    static_cache = False
    running_state = True

    def build(self) -> None:
        D, d, bias, r = self.hidden_size, self.head_dim, self.bias, self.options.rank
        self.h, self.h_kv = halve_heads(self.name, self.num_heads, self.num_kv_heads)
        self.q_proj = nn.Linear(D, self.h * d, bias)
        self.k_proj = nn.Linear(D, self.h_kv * d, bias)
        self.v_proj = nn.Linear(D, 2 * self.h_kv * d, bias)
        self.noise_q_proj = nn.Linear(D, self.h * r, bias)
        self.noise_k_proj = nn.Linear(D, self.h_kv * r, bias)
        self.lam = Lambda(d, self.layer, self.options)
        self.norm = HeadNorm(self.options.head_norm, 2 * d, 1.0 - self.lam.init, self.eps)
        self.o_proj = nn.Linear(2 * self.h * d, D, bias)

    def project(self, inputs: Inputs) -> Heads:
        x, context, d, r = inputs.x, inputs.context, self.head_dim, self.options.rank
        q = split_heads(rope(apply_linear(self.q_proj, x), d, inputs.rotary), d)  # [B, h, Tq, d]
        k = split_heads(rope(apply_linear(self.k_proj, context), d, inputs.key_rotary), d)
        v = split_heads(apply_linear(self.v_proj, context), 2 * d)
        # No RoPE on the features: a rotation would make some negative, and A2 no attention map.
        q2 = split_heads(softplus(apply_linear(self.noise_q_proj, x)), r)  # [B, h, Tq, r]
        k2 = split_heads(softplus(apply_linear(self.noise_k_proj, context)), r)  # [B, h_kv, new, r]
        new = k.shape[2]
        k, v = extend_cache(inputs.cache, k, v)  # k2 is not cached: the running state replaces it
        return Heads(x, q, k, v, q2, k2, lam=self.lam(x, inputs.cache), new=new, cache=inputs.cache)

    def attend(self, heads: Heads, masking: Masking, backend: str) -> Tensor:
        _, _, q2, k2, _, lam = heads.diff_arguments
        running = running_arguments(self.name, heads, masking)
        noise, state = linear_attention(q2, k2, heads.v_new, **running)
        store_state(heads, state)
        if needs_map(masking):
            return masking.apply(self.maps(heads, masking)["difference"], heads.v)
        signal = attention(heads.q, heads.k, heads.v, **masking.of_output, backend=backend)
        return (signal - lam * noise).to(signal.dtype)  # lam is fp32

    def output(self, o: Tensor, heads: Heads) -> Tensor:
        return apply_linear(self.o_proj, merge_heads(self.norm(o)))

    def maps(self, heads: Heads, masking: Masking) -> dict[str, Tensor]:
        visible = visible_noise(self.name, heads, masking)
        _, _, q2, k2, _, _ = heads.diff_arguments
        A1 = attention_map(heads.q, heads.k, heads.v, **masking.of_maps)
        A2 = linear_map(q2, k2, visible)
        lam = per_row(heads.lam, A1)
        return {"signal": A1, "noise": A2, "lam": lam, "difference": A1 - lam * A2}

    @property
    def cache_elements_per_token(self) -> int:
        return 3 * self.h_kv * self.head_dim

    @property
    def head_counts(self) -> dict[str, int]:
        return {"heads": self.h, "maps": self.h, "kv_heads": self.h_kv}
