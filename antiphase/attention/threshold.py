"""Threshold differential attention, TDA (arXiv 2601.12145): thresholded cosines, no softmax.

    O = norm((a1 - lam a2) V) W_O,  a_b = max(cos(Q_b, K_b) - tau, 0)^p,
    tau_i = beta sqrt(2 ln(n_i) / d), n_i the number of keys that row i may attend to

Each of the baseline's heads has two queries, two keys and one value of width d. lam is a sigmoid of
one learned number per head; that form is ours, since the published one is not known, and so is the
place of the norm. Most weights are exactly zero, and a row may have none at all: a dead row. Use
heads of width 32 or more. The maps are materialised: memory grows with T^2.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from antiphase.attention.base import Attention
from antiphase.attention.heads import Heads, Inputs, extend_cache, merge_heads, rope, split_heads
from antiphase.attention.masking import Masking
from antiphase.attention.parts import Float32Parameters, HeadNorm, per_row
from antiphase.attention.projections import apply_linear
from antiphase.ops import threshold_attention, threshold_maps


@dataclass(frozen=True)
class ThresholdOptions:
    """Options of `Threshold`.

    Args:
        beta: factor of the threshold; 0 keeps every positive cosine.
        power: exponent of what exceeds the threshold.
        head_norm: "rms", one learned "scalar", or "none", per head before W_O.
    """

    beta: float = 1.0
    power: float = 2.0
    head_norm: Literal["rms", "scalar", "none"] = "rms"

    def __post_init__(self) -> None:
        if not (0 <= self.beta < math.inf and 1 <= self.power < math.inf):
            raise ValueError(
                f"beta, power: got {self.beta}, {self.power}, expected finite numbers, beta of at "
                "least 0 and power of at least 1"
            )


class LambdaLogits(Float32Parameters):
    """lam = sigmoid(logit), one per head: between 0 and 1 without a clamp."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.empty(heads, dtype=torch.float32))
        self.init_parameters()

    def init_parameters(self) -> None:
        nn.init.zeros_(self.logits)  # lam = 0.5, as V2 starts

    def forward(self) -> Tensor:
        """Return lam [1, heads, 1, 1]."""
        return torch.sigmoid(self.logits)[None, :, None, None]


class Threshold(Attention):
    """Differential attention with thresholded cosines: sparse, rows may be empty."""

    name = "threshold"
    Options = ThresholdOptions
    unsplit = "its lam is one parameter per head, and plans split projections only"
    has_softmax = False

    def build(self) -> None:
        D, d, bias = self.hidden_size, self.head_dim, self.bias
        self.q_proj = nn.Linear(D, 2 * self.num_heads * d, bias)
        self.k_proj = nn.Linear(D, 2 * self.num_kv_heads * d, bias)
        self.v_proj = nn.Linear(D, self.num_kv_heads * d, bias)
        self.lam_logits = LambdaLogits(self.num_heads)
        # A new layer has weights in a fifth of its rows (at 64 keys), and they are squares of small
        # numbers: the outputs of these rows have an RMS of 1e-4 to 1e-3, below the usual eps.
        self.norm = HeadNorm(self.options.head_norm, d, 1.0, self.eps / 100, live=0.2)
        self.o_proj = nn.Linear(self.num_heads * d, D, bias)

    def project(self, inputs: Inputs) -> Heads:
        x, context, d = inputs.x, inputs.context, self.head_dim
        q = split_heads(rope(apply_linear(self.q_proj, x), d, inputs.rotary), d)  # [B, 2h, Tq, d]
        # A pair's two keys side by side as one head, so that a static cache fits, as in V1.
        k = split_heads(rope(apply_linear(self.k_proj, context), d, inputs.key_rotary), 2 * d)
        v = split_heads(apply_linear(self.v_proj, context), d)
        k, v = extend_cache(inputs.cache, k, v)  # [B, h_kv, Tk, 2d | d]
        q1, q2 = q.unflatten(1, (-1, 2)).unbind(2)
        k1, k2 = k.split(d, dim=-1)
        return Heads(x, q1, k1, v, q2, k2, lam=self.lam_logits())

    def attend(self, heads: Heads, masking: Masking, backend: str) -> Tensor:
        arguments = self._arguments(masking)
        return threshold_attention(*heads.diff_arguments, **arguments, dropout=masking.dropout)

    def output(self, o: Tensor, heads: Heads) -> Tensor:
        return apply_linear(self.o_proj, merge_heads(self.norm(o)))

    def maps(self, heads: Heads, masking: Masking) -> dict[str, Tensor]:
        A1, A2, A = threshold_maps(*heads.diff_arguments, **self._arguments(masking))
        return {"signal": A1, "noise": A2, "lam": per_row(heads.lam, A1), "difference": A}

    def _arguments(self, masking: Masking) -> dict[str, Any]:
        return {"beta": self.options.beta, "power": self.options.power, **masking.visibility}

    @property
    def cache_elements_per_token(self) -> int:
        return 3 * self.num_kv_heads * self.head_dim

    @property
    def head_counts(self) -> dict[str, int]:
        h = self.num_heads
        return {"heads": h, "maps": 2 * h, "kv_heads": self.num_kv_heads}
