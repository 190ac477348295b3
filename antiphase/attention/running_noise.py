"""Noise without a second T x T map: cumulative in training, a constant state in decoding."""

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from antiphase.attention.base import key_padding, remember, split_heads
from antiphase.attention.heads import Heads, Inputs
from antiphase.attention.paired import Paired
from antiphase.ops import attention, attention_map, repeat_heads
from antiphase.ops.arguments import causal_mask


class RunningNoise(Paired):
    """V1 whose noise is A2 V from a cumulative form that a subclass names."""

    static_cache = False
    running_state = True

    def project(self, inputs: Inputs) -> Heads:
        x, context = inputs.x, inputs.context
        d = self.head_dim
        q = split_heads(self.q_proj(x), d, inputs.rotary).transpose(1, 2)
        k = split_heads(self.k_proj(context), d, inputs.key_rotary).transpose(1, 2)
        v = split_heads(self.v_proj(context), 2 * d).transpose(1, 2)
        new = k.shape[2]
        k, v = remember(inputs.cache, k, v)
        q2, k2 = self.features(x, context)
        return Heads(x, q, k, v, q2, k2, lam=self.lam(x), new=new, cache=inputs.cache)

    @abstractmethod
    def features(self, x: Tensor, context: Tensor) -> tuple[Tensor | None, Tensor]:
        """Return what the noise needs of the new queries and of the new keys."""

    @abstractmethod
    def noise(self, heads: Heads, **visible: Any) -> tuple[Tensor, Tensor]:
        """Return A2 V [B, h, Tq, 2d] and the state after the last key."""

    @abstractmethod
    def noise_map(self, heads: Heads, visible: Tensor | None) -> Tensor:
        """Return A2 [B, h, Tq, Tk]; `visible` broadcasts to it, True where a query may look."""

    def mix(self, heads: Heads, *, causal: bool, mask: Tensor | None, backend: str) -> Tensor:
        keys = key_padding(mask, self.name)
        signal = attention(heads.q, heads.k, heads.v, causal=causal, mask=mask, backend=backend)
        keys = None if keys is None else keys[:, -heads.new :].expand(len(heads.x), -1)
        state = None if heads.cache is None else heads.cache.state()
        noise, state = self.noise(heads, causal=causal, keys=keys, state=state)
        if heads.cache is not None:
            heads.cache.store(state)
        return (signal - heads.lam * noise).to(signal.dtype)  # type: ignore[operator]

    def maps(self, heads: Heads, *, causal: bool, mask: Tensor | None) -> dict[str, Tensor]:
        if heads.new != heads.k.shape[2]:
            raise ValueError(
                f"maps: {self.name} keeps a running state, not the noise keys of earlier tokens; "
                "ask for maps of the whole text at once, without a cache"
            )
        if mask is not None and mask.dtype != torch.bool:
            raise ValueError(f"mask: got {mask.dtype}; {self.name} takes only a boolean one")
        visible = mask
        if causal:
            T = heads.k.shape[2]
            below = causal_mask(T, T, heads.k.device)
            visible = below if mask is None else below & mask
        A1 = attention_map(heads.q, heads.k, heads.v, causal=causal, mask=mask)
        A2 = repeat_heads(self.noise_map(heads, visible), self.h)
        lam = heads.lam.expand(*A1.shape[:3], 1)  # type: ignore[union-attr]
        return {"signal": A1, "noise": A2, "lam": lam, "difference": A1 - lam * A2}

    @property
    def cache_numbers(self) -> int:
        return 3 * self.h_kv * self.head_dim

    @property
    def head_counts(self) -> dict[str, int]:
        return {"heads": self.h, "maps": self.h, "kv_heads": self.h_kv}
