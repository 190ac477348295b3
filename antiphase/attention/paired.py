"""What V1 and its kin share: pairs of the baseline's heads, lam of the layer, and the head norm."""

from typing import Any

from torch import Tensor

from antiphase.attention.base import Attention
from antiphase.attention.heads import Heads
from antiphase.attention.parts import HeadNorm, Lambda, NoiseOptions
from antiphase.ops import attention_maps, diff_attention


class TwoMaps(Attention):
    """A layer with two softmax maps a head: how it mixes and writes them down."""

    def mix(self, heads: Heads, *, causal: bool, mask: Tensor | None, backend: str) -> Tensor:
        return diff_attention(*_six(heads), causal=causal, mask=mask, backend=backend)

    def maps(self, heads: Heads, *, causal: bool, mask: Tensor | None) -> dict[str, Tensor]:
        A1, A2, A = attention_maps(*_six(heads), causal=causal, mask=mask)
        lam = heads.lam.expand(*A.shape[:3], 1)  # type: ignore[union-attr]
        return {"signal": A1, "noise": A2, "lam": lam, "difference": A}


class Paired(Attention):
    """A layer of half the baseline's heads, with lam, a norm over each head, and V of width 2d."""

    Options = NoiseOptions

    def pair_heads(self) -> None:
        """Derive h and h_kv from the baseline's heads, or say why they cannot be halved."""
        for what, n in {"num_heads": self.num_heads, "num_kv_heads": self.num_kv_heads}.items():
            if n % 2:
                raise ValueError(
                    f"{what}: {self.name} pairs the baseline's heads, and {n} cannot be halved; "
                    "use an even number"
                )
        self.h, self.h_kv = self.num_heads // 2, self.num_kv_heads // 2

    def build_signal(self) -> None:
        """Make the projections of one map of width d and of V of width 2d."""
        self.pair_heads()
        d = self.head_dim
        self.q_proj = self.linear(self.hidden_size, self.h * d)
        self.k_proj = self.linear(self.hidden_size, self.h_kv * d)
        self.v_proj = self.linear(self.hidden_size, 2 * self.h_kv * d)

    def build_output(self, heads: int, width: int) -> None:
        """Make what follows the maps: lam, the norm of heads of that width, and W_O."""
        self.lam = Lambda(self.head_dim, self.layer, self.options)
        factor = 1.0 - self.lam.init
        self.norm = HeadNorm(self.options.head_norm, width, factor, self.eps)
        self.o_proj = self.linear(heads * width, self.hidden_size)

    def merge(self, o: Tensor, heads: Heads) -> Tensor:
        return super().merge(self.norm(o), heads)


def _six(heads: Heads) -> tuple[Any, ...]:
    return heads.q, heads.k, heads.q2, heads.k2, heads.v, heads.lam
