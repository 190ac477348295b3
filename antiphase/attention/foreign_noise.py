"""Control: DIFF V1 whose noise map does not share the noise of its signal map.

    O = norm((softmax(Q1 K1^T / sqrt(d)) - lam A2) V) W_O

form="sequence": A2 = softmax(Q2 K2^T / sqrt(d)) of the next sequence in the batch (the last takes
the first), at the same positions. No gradient reaches that sequence; W_Q2 and W_K2 are trained.
The mask is the one of the signal map, since A2 is applied to the same V.

form="random": Q2 and K2 of the sequence itself, from W_Q2 and W_K2 that stay at their random
initial values.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, cat, nn

from antiphase.attention.base import Attention
from antiphase.attention.heads import Heads, Inputs, extend_cache, merge_heads, rope, split_heads
from antiphase.attention.masking import Masking
from antiphase.attention.parts import (
    Float32Parameters,
    HeadNorm,
    Lambda,
    NoiseOptions,
    halve_heads,
    two_softmax_maps,
)
from antiphase.attention.projections import apply_linear, by_heads
from antiphase.ops import diff_attention


@dataclass(frozen=True)
class ForeignNoiseOptions(NoiseOptions):
    """Options of `ForeignNoise`: those of V1, and the form.

    Args:
        form: "sequence" for the noise map of the next sequence in the batch, "random" for one of
            the same sequence from frozen random weights.
    """

    form: Literal["sequence", "random"] = "sequence"


class FrozenProjection(Float32Parameters):
    """A projection without bias that stays at its random initial weights.

    Queries and keys of inputs of RMS 1 have logits q . k / sqrt(d) of standard deviation 1: with
    weights N(0, s^2), a channel of q or k has the variance D s^2, a sum of d products d (D s^2)^2,
    and a logit (D s^2)^2, which is 1 at s = D^-0.5. RoPE, a rotation, does not change that.

    The weights are parameters, so that a model counts as many as with V1, and never trained.

    Args:
        hidden_size: D.
        width: of the result.
    """

    def __init__(self, hidden_size: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, hidden_size, dtype=torch.float32))
        self.out_features = width  # as nn.Linear has it, for tensor parallelism
        self.init_parameters()

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        # Every assignment ends here, also transformers' on loading, which makes weights trainable.
        if param is not None:
            param.requires_grad_(False)
        super().register_parameter(name, param)

    def init_parameters(self) -> None:
        nn.init.normal_(self.weight, 0.0, self.weight.shape[1] ** -0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Return x [B, T, D] projected, [B, T, width], in the dtype that an `nn.Linear` gives."""
        return F.linear(x, self.weight.to(x.dtype))


class ForeignNoise(Attention):
    """V1 with the noise map of another sequence, or of random weights.

    With form="random", W_Q2 and W_K2 count as parameters but are not trained: the layer has as many
    as V1, of which fewer are trainable.
    """

    name = "foreign_noise"
    Options = ForeignNoiseOptions
    tensor_parallel = by_heads("noise_q_proj", "noise_k_proj", shared=("lam", "norm"))

    def build(self) -> None:
        D, d, bias = self.hidden_size, self.head_dim, self.bias
        self.h, self.h_kv = halve_heads(self.name, self.num_heads, self.num_kv_heads)
        self.q_proj = nn.Linear(D, self.h * d, bias)
        self.k_proj = nn.Linear(D, self.h_kv * d, bias)
        self.v_proj = nn.Linear(D, 2 * self.h_kv * d, bias)
        self.noise_q_proj = self._noise_projection(self.h * d)
        self.noise_k_proj = self._noise_projection(self.h_kv * d)
        self.lam = Lambda(d, self.layer, self.options)
        self.norm = HeadNorm(self.options.head_norm, 2 * d, 1.0 - self.lam.init, self.eps)
        self.o_proj = nn.Linear(2 * self.h * d, D, bias)

    def _noise_projection(self, width: int) -> nn.Module:
        if self.mixes_sequences:
            return nn.Linear(self.hidden_size, width, self.bias)
        return FrozenProjection(self.hidden_size, width)

    def project(self, inputs: Inputs) -> Heads:
        x, context, d = inputs.x, inputs.context, self.head_dim
        noise_x, noise_context = x, context
        if self.mixes_sequences:
            self._check_batch(x.shape[0])
            noise_x, noise_context = x.detach(), context.detach()
        q = split_heads(rope(apply_linear(self.q_proj, x), d, inputs.rotary), d)  # [B, h, Tq, d]
        q2 = split_heads(rope(apply_linear(self.noise_q_proj, noise_x), d, inputs.rotary), d)
        k = rope(apply_linear(self.k_proj, context), d, inputs.key_rotary).unflatten(-1, (-1, d))
        k2 = rope(apply_linear(self.noise_k_proj, noise_context), d, inputs.key_rotary)
        k2 = k2.unflatten(-1, (-1, d))
        v = split_heads(apply_linear(self.v_proj, context), 2 * d)
        # Both keys side by side as one head, so that a static cache fits, as in V1.
        keys, v = extend_cache(inputs.cache, cat([k, k2], dim=-1).transpose(1, 2), v)
        k, k2 = keys.split(d, dim=-1)  # [B, h_kv, Tk, d]
        if self.mixes_sequences:
            q2, k2 = q2.roll(-1, dims=0), k2.roll(-1, dims=0)
        return Heads(x, q, k, v, q2, k2, lam=self.lam(x, inputs.cache))

    def _check_batch(self, sequences: int) -> None:
        if sequences == 1:
            raise ValueError(
                "foreign_noise: got a batch of 1 sequence, but its noise map comes from the next "
                "sequence of the batch; use batches of at least 2, or form='random'"
            )

    def attend(self, heads: Heads, masking: Masking, backend: str) -> Tensor:
        return diff_attention(*heads.diff_arguments, **masking.of_output, backend=backend)

    def output(self, o: Tensor, heads: Heads) -> Tensor:
        return apply_linear(self.o_proj, merge_heads(self.norm(o)))

    def maps(self, heads: Heads, masking: Masking) -> dict[str, Tensor]:
        return two_softmax_maps(heads, masking)

    @property
    def mixes_sequences(self) -> bool:
        return bool(self.options.form == "sequence")

    @property
    def cache_elements_per_token(self) -> int:
        return 4 * self.h_kv * self.head_dim

    @property
    def head_counts(self) -> dict[str, int]:
        return {"heads": self.h, "maps": 2 * self.h, "kv_heads": self.h_kv}
