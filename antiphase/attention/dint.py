"""DINT (arXiv 2501.17486): DIFF V1 plus the integral of its signal map; rows sum to 1 again.

    O = norm((A1 - lam A2 + lam G) V) W_O,  G[i, j] = 1/n sum_{m <= i} A1[m, j]

The published G is the mean over all rows, which looks into the future. This is the causal form: the
mean over the n rows up to i that are tokens, not padding, of the same document; without `causal`,
it is over all rows. G V at row i is the mean of (A1 V)[m] over these rows, so there is no third
map, and decoding keeps one summed vector and a count per head. Parameters, lam and lam_init are
V1's. So is the head norm with its factor 1 - lam_init, which is not known of the published code.
"""

from typing import Any

import torch
from torch import Tensor, nn

from antiphase.attention.base import Attention
from antiphase.attention.heads import Heads, Inputs, extend_cache, merge_heads, rope, split_heads
from antiphase.attention.masking import Masking
from antiphase.attention.parts import HeadNorm, Lambda, NoiseOptions, halve_heads, two_softmax_maps
from antiphase.attention.projections import apply_linear, by_heads
from antiphase.attention.running_noise import needs_map, running_arguments, store_state
from antiphase.ops import (
    attention,
    causal_mask,
    linear_attention,
    linear_map,
    without_autocast,
)
from antiphase.ops.documents import document_ranges


class Dint(Attention):
    """Differential attention plus the mean of the signal map over the rows so far."""

    name = "dint"
    Options = NoiseOptions
    tensor_parallel = by_heads(shared=("lam", "norm"))
    static_cache = False
    running_state = True
    row_by_row = False

    def build(self) -> None:
        D, d, bias = self.hidden_size, self.head_dim, self.bias
        self.h, self.h_kv = halve_heads(self.name, self.num_heads, self.num_kv_heads)
        self.q_proj = nn.Linear(D, 2 * self.h * d, bias)
        self.k_proj = nn.Linear(D, 2 * self.h_kv * d, bias)
        self.v_proj = nn.Linear(D, 2 * self.h_kv * d, bias)
        self.lam = Lambda(d, self.layer, self.options)
        self.norm = HeadNorm(self.options.head_norm, 2 * d, 1.0 - self.lam.init, self.eps)
        self.o_proj = nn.Linear(2 * self.h * d, D, bias)

    def project(self, inputs: Inputs) -> Heads:
        x, context, d = inputs.x, inputs.context, self.head_dim
        q = split_heads(rope(apply_linear(self.q_proj, x), d, inputs.rotary), d)  # [B, 2h, Tq, d]
        k = split_heads(rope(apply_linear(self.k_proj, context), d, inputs.key_rotary), 2 * d)
        v = split_heads(apply_linear(self.v_proj, context), 2 * d)
        k, v = extend_cache(inputs.cache, k, v)  # [B, h_kv, Tk, 2d]
        q1, q2 = q.unflatten(1, (-1, 2)).unbind(2)
        k1, k2 = k.split(d, dim=-1)
        # A padding mask is one of the keys; it is one of the rows, too, unless these are others.
        new = x.shape[1] if context is x else 0
        lam = self.lam(x, inputs.cache)
        return Heads(x, q1, k1, v, q2, k2, lam=lam, new=new, cache=inputs.cache)

    def attend(self, heads: Heads, masking: Masking, backend: str) -> Tensor:
        q1, k1, q2, k2, v, lam = heads.diff_arguments
        plain = Masking(**masking.of_maps)  # dropout is one of the complete map
        signal = attention(q1, k1, v, **plain.of_output, backend=backend)
        rows: dict[str, Any] = {"causal": masking.causal}
        if heads.new:
            rows = running_arguments(self.name, heads, masking)
        one = signal.new_ones(*signal.shape[:3], 1)  # equal weights: linear attention is the mean
        integral, state = linear_attention(one, one, signal, **rows)
        store_state(heads, state)  # [B, h, 1, 2d + 1]: the sum of A1 V over the rows, their number
        if needs_map(masking):
            return masking.apply(self.maps(heads, masking)["difference"], v)
        noise = attention(q2, k2, v, **masking.of_output, backend=backend)
        return (signal - lam * (noise - integral)).to(signal.dtype)  # lam is fp32

    def output(self, o: Tensor, heads: Heads) -> Tensor:
        return apply_linear(self.o_proj, merge_heads(self.norm(o)))

    def maps(self, heads: Heads, masking: Masking) -> dict[str, Tensor]:
        if heads.cache is not None and heads.new != heads.k.shape[2]:
            raise ValueError(
                "maps: dint keeps a running state, not the rows of earlier tokens; request the "
                "maps of the complete sequence at once, without a cache"
            )
        maps = two_softmax_maps(heads, masking)
        A1 = maps["signal"]
        one = A1.new_ones(*A1.shape[:1], 1, A1.shape[2], 1)
        mean = linear_map(one, one, self._counted_rows(heads, masking))  # [B, 1, Tq, Tq]
        with without_autocast(A1.device):
            maps["integral"] = mean @ A1
        return {**maps, "difference": self.applied_map(maps)}

    def _counted_rows(self, heads: Heads, masking: Masking) -> Tensor | None:
        """Return over which rows m the mean at row i goes, broadcastable to [B, 1, Tq, Tq]."""
        Tq, device = heads.q.shape[2], heads.q.device
        counted = torch.ones(1, 1, Tq, Tq, dtype=torch.bool, device=device)
        if masking.causal:
            counted = causal_mask(Tq, Tq, device)[None, None]
        if heads.new:
            keys = running_arguments(self.name, heads, masking)["keys"]
            counted = counted if keys is None else counted & keys[:, None, None]
        if masking.documents is not None:
            first, last = document_ranges(masking.documents, Tq)[:, None, :, :, None].unbind(3)
            m = torch.arange(Tq, device=device)
            counted = counted & (m >= first) & (m < last)
        return counted

    def applied_map(self, maps: dict[str, Tensor]) -> Tensor:
        return maps["signal"] - maps["lam"] * (maps["noise"] - maps["integral"])

    @property
    def cache_elements_per_token(self) -> int:
        return 4 * self.h_kv * self.head_dim

    @property
    def head_counts(self) -> dict[str, int]:
        return {"heads": self.h, "maps": 2 * self.h, "kv_heads": self.h_kv}
