"""Causal linear attention (arXiv 2006.16236), a baseline with a state instead of a KV cache.

    A[i, j] = phi(q_i) . phi(k_j) / sum_{j' <= i} phi(q_i) . phi(k_j'),  phi = elu + 1;  O = A V W_O

The heads and parameters are the baseline's. There is no RoPE: a rotation would make features
negative, and A no attention map. Decoding keeps a sum of d (d + 1) numbers per key/value head and
no keys, so its cost does not depend on the length.
"""

from torch import Tensor, nn

from antiphase.attention.base import Attention
from antiphase.attention.heads import Heads, Inputs, count_tokens, merge_heads, split_heads
from antiphase.attention.masking import Masking
from antiphase.attention.parts import elu_plus_one
from antiphase.attention.projections import apply_linear, by_heads
from antiphase.attention.running_noise import (
    needs_map,
    running_arguments,
    store_state,
    visible_noise,
)
from antiphase.ops import linear_attention, linear_map


class Linear(Attention):
    """Attention by positive features in place of a softmax, in time linear in the length."""

    name = "linear"
    tensor_parallel = by_heads()
    static_cache = False
    running_state = True
    has_softmax = False

    def build(self) -> None:
        D, d, bias = self.hidden_size, self.head_dim, self.bias
        self.q_proj = nn.Linear(D, self.num_heads * d, bias)
        self.k_proj = nn.Linear(D, self.num_kv_heads * d, bias)
        self.v_proj = nn.Linear(D, self.num_kv_heads * d, bias)
        self.o_proj = nn.Linear(self.num_heads * d, D, bias)

    def project(self, inputs: Inputs) -> Heads:
        x, context, d = inputs.x, inputs.context, self.head_dim
        q = split_heads(elu_plus_one(apply_linear(self.q_proj, x)), d)  # [B, h, Tq, d]
        k = split_heads(elu_plus_one(apply_linear(self.k_proj, context)), d)  # [B, h_kv, new, d]
        v = split_heads(apply_linear(self.v_proj, context), d)
        past = count_tokens(inputs.cache, context)
        return Heads(x, q, k, v, new=context.shape[1], past=past, cache=inputs.cache)

    def attend(self, heads: Heads, masking: Masking, backend: str) -> Tensor:
        running = running_arguments(self.name, heads, masking)
        out, state = linear_attention(heads.q, heads.k, heads.v, **running)
        store_state(heads, state)
        if needs_map(masking):
            return masking.apply(self.maps(heads, masking)["difference"], heads.v)
        return out

    def output(self, o: Tensor, heads: Heads) -> Tensor:
        return apply_linear(self.o_proj, merge_heads(o))

    def maps(self, heads: Heads, masking: Masking) -> dict[str, Tensor]:
        A = linear_map(heads.q, heads.k, visible_noise(self.name, heads, masking))
        return {"signal": A, "difference": A}

    @property
    def rotary_widths(self) -> tuple[int, ...]:
        return ()

    @property
    def cache_elements_per_token(self) -> int:
        return 0
