"""Fixed noise: V1 whose noise map does not depend on the query.

    A2[i, j] = g_j / sum_{j' <= i} g_j',  g = exp(w . x_j) per head, or g = 1: the running mean

A2 has rank 1 in any block of rows >= m and columns < m. It costs O(T d), so the layer has one
softmax map.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from antiphase.attention.base import Attention
from antiphase.attention.heads import Heads, Inputs, extend_cache, merge_heads, rope, split_heads
from antiphase.attention.masking import Masking
from antiphase.attention.parts import HeadNorm, Lambda, NoiseOptions, halve_heads, per_row
from antiphase.attention.projections import apply_linear, by_heads
from antiphase.attention.running_noise import (
    needs_map,
    running_arguments,
    store_state,
    visible_noise,
)
from antiphase.ops import (
    attention,
    attention_map,
    prefix_attention,
    prefix_map,
    repeat_heads,
    statistics_dtype,
)


@dataclass(frozen=True)
class FixedNoiseOptions(NoiseOptions):
    """Options of `FixedNoise`: those of V1, and the gate.

    Args:
        gate: "learned" weights g = exp(w . x), or the parameter-free running "mean".
    """

    gate: Literal["learned", "mean"] = "learned"


class FixedNoise(Attention):
    """V1 with noise weights that are the same for every query, over the visible keys."""

    name = "fixed_noise"
    Options = FixedNoiseOptions
    tensor_parallel = by_heads("gate_proj", shared=("lam", "norm"))
    static_cache = False
    running_state = True

    def build(self) -> None:
        D, d, bias = self.hidden_size, self.head_dim, self.bias
        self.h, self.h_kv = halve_heads(self.name, self.num_heads, self.num_kv_heads)
        self.q_proj = nn.Linear(D, self.h * d, bias)
        self.k_proj = nn.Linear(D, self.h_kv * d, bias)
        self.v_proj = nn.Linear(D, 2 * self.h_kv * d, bias)
        if self.options.gate == "learned":
            # Never a bias: it would scale all g alike, and their ratio cancels it.
            self.gate_proj = nn.Linear(D, self.h_kv, bias=False)
        self.lam = Lambda(d, self.layer, self.options)
        self.norm = HeadNorm(self.options.head_norm, 2 * d, 1.0 - self.lam.init, self.eps)
        self.o_proj = nn.Linear(2 * self.h * d, D, bias)

    def project(self, inputs: Inputs) -> Heads:
        x, context, d = inputs.x, inputs.context, self.head_dim
        q = split_heads(rope(apply_linear(self.q_proj, x), d, inputs.rotary), d)  # [B, h, Tq, d]
        k = split_heads(rope(apply_linear(self.k_proj, context), d, inputs.key_rotary), d)
        v = split_heads(apply_linear(self.v_proj, context), 2 * d)
        new = k.shape[2]
        k, v = extend_cache(inputs.cache, k, v)
        log_g = self._log_g(context, v.shape[1])  # replaces the noise keys
        return Heads(
            x, q, k, v, k2=log_g, lam=self.lam(x, inputs.cache), new=new, cache=inputs.cache
        )

    def attend(self, heads: Heads, masking: Masking, backend: str) -> Tensor:
        log_g, lam = heads.k2, heads.lam
        assert log_g is not None
        assert lam is not None
        running = running_arguments(self.name, heads, masking)
        noise, state = prefix_attention(log_g, heads.v_new, **running)
        store_state(heads, state)
        if needs_map(masking):
            return masking.apply(self.maps(heads, masking)["difference"], heads.v)
        signal = attention(heads.q, heads.k, heads.v, **masking.of_output, backend=backend)
        return (signal - lam * repeat_heads(noise, signal.shape[1])).to(signal.dtype)  # lam is fp32

    def output(self, o: Tensor, heads: Heads) -> Tensor:
        return apply_linear(self.o_proj, merge_heads(self.norm(o)))

    def maps(self, heads: Heads, masking: Masking) -> dict[str, Tensor]:
        visible = visible_noise(self.name, heads, masking)
        assert heads.k2 is not None
        A1 = attention_map(heads.q, heads.k, heads.v, **masking.of_maps)
        A2 = repeat_heads(prefix_map(heads.k2, heads.q.shape[2], visible), A1.shape[1])
        lam = per_row(heads.lam, A1)
        return {"signal": A1, "noise": A2, "lam": lam, "difference": A1 - lam * A2}

    def _log_g(self, context: Tensor, heads: int) -> Tensor:
        """Return log g [B, h_kv, Tk], one weight per token and key/value head."""
        if self.options.gate == "mean":
            return context.new_zeros(context.shape[0], heads, context.shape[1])
        log_g = apply_linear(self.gate_proj, context)
        return log_g.to(statistics_dtype(log_g.dtype)).mT

    @property
    def cache_elements_per_token(self) -> int:
        return 3 * self.h_kv * self.head_dim

    @property
    def head_counts(self) -> dict[str, int]:
        return {"heads": self.h, "maps": self.h, "kv_heads": self.h_kv}
