"""DIFF V1 (arXiv 2410.05258).

    O = norm((softmax(Q1 K1^T / sqrt(d)) - lam softmax(Q2 K2^T / sqrt(d))) V) W_O

A baseline of 2h heads of width d becomes h heads with two attention maps each and V of width 2d.
The maps of head i come from the adjacent query heads 2i and 2i + 1. Both use the key pair of group
i // (h / h_kv): with GQA, `repeat_interleave` over single key heads would pair q1 and q2 with the
same key.
"""

import torch
from torch import Tensor, nn

from antiphase.attention.base import Attention
from antiphase.attention.heads import Heads, Inputs, extend_cache, merge_heads, rope, split_heads
from antiphase.attention.masking import Masking
from antiphase.attention.parts import HeadNorm, Lambda, NoiseOptions, halve_heads, two_softmax_maps
from antiphase.attention.projections import apply_linear, by_heads
from antiphase.ops import diff_attention


class DiffV1(Attention):
    """Differential attention as published: two maps of full width from paired heads."""

    name = "diff_v1"
    Options = NoiseOptions
    tensor_parallel = by_heads(shared=("lam", "norm"))

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
        # A pair's two keys side by side as one head of width 2d: transformers' static cache sizes
        # V by K's heads, so both need the same number of heads.
        k = split_heads(rope(apply_linear(self.k_proj, context), d, inputs.key_rotary), 2 * d)
        v = split_heads(apply_linear(self.v_proj, context), 2 * d)
        k, v = extend_cache(inputs.cache, k, v)  # [B, h_kv, Tk, 2d]
        q1, q2 = q.unflatten(1, (-1, 2)).unbind(2)
        k1, k2 = k.split(d, dim=-1)
        return Heads(x, q1, k1, v, q2, k2, lam=self.lam(x, inputs.cache))

    def attend(self, heads: Heads, masking: Masking, backend: str) -> Tensor:
        return diff_attention(*heads.diff_arguments, **masking.of_output, backend=backend)

    def output(self, o: Tensor, heads: Heads) -> Tensor:
        return apply_linear(self.o_proj, merge_heads(self.norm(o)))

    def maps(self, heads: Heads, masking: Masking) -> dict[str, Tensor]:
        return two_softmax_maps(heads, masking)

    @property
    def cache_elements_per_token(self) -> int:
        return 4 * self.h_kv * self.head_dim

    @property
    def head_counts(self) -> dict[str, int]:
        return {"heads": self.h, "maps": 2 * self.h, "kv_heads": self.h_kv}

    @property
    def function_head_counts(self) -> tuple[int, int]:
        return 4 * self.h, 4 * self.h_kv

    def function_heads(self, heads: Heads) -> tuple[Tensor, Tensor, Tensor]:
        # Standard attention has keys and values of one width and number, so V is halved, and each
        # of the two maps is computed for each half: twice the work, and twice the keys and values.
        # Heads in the order (group, map, half of V, head of the group).
        q1, k1, q2, k2, v, _ = heads.diff_arguments
        groups = v.shape[1]
        q1, q2 = (q.unflatten(1, (groups, -1)) for q in (q1, q2))  # [B, h_kv, h / h_kv, Tq, d]
        q = torch.stack([q1, q1, q2, q2], dim=2)
        k = torch.stack([k1, k1, k2, k2], dim=2)
        v = torch.stack(2 * v.chunk(2, dim=-1), dim=2)
        return q.flatten(1, 3), k.flatten(1, 2), v.flatten(1, 2)

    def function_output(self, o: Tensor, heads: Heads) -> Tensor:
        o1, o2 = o.unflatten(1, (heads.v.shape[1], 2, 2, -1)).unbind(2)
        assert heads.lam is not None
        halves = (o1 - heads.lam * o2).to(o.dtype)  # [B, h_kv, 2, h / h_kv, Tq, d]
        return torch.cat(halves.unbind(2), dim=-1).flatten(1, 2)  # [B, h, Tq, 2d]
