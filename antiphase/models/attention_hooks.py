"""Queries, keys and outputs of attention in any Hugging Face model, on its own fast kernels.

The model's attention function is wrapped through transformers' attention interface. The model is
not switched to eager attention, which would materialise every attention map.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from antiphase.ops import repeat_heads

PREFIX = "antiphase_hooked_"  # of the names of wrapped attention functions
MASKED = -1e4  # additive masks hold 0 or the lowest number of their dtype; any threshold between


@dataclass(frozen=True)
class AttentionCall:
    """One layer's attention in one forward pass."""

    q: Tensor  # [B, h, T, d]
    k: Tensor  # [B, h_kv, T, d]
    mask: Tensor | None  # [B, T] or [B | 1, h | 1, T, T], boolean or additive
    options: dict[str, Any]  # what the model passed beside: scaling, softcap, s_aux (sinks)
    out: Tensor  # [B, T, h, dv]

    def scores(self, rows: Tensor) -> Tensor:
        """Return the scaled scores of some queries before the softmax.

        Args:
            rows: [B, n], the positions of the queries.

        Returns:
            [B, h, n, T] in fp32, -inf where a key is masked.
        """
        q, k = self.q, self.k
        q = q.gather(2, rows[:, None, :, None].expand(-1, q.shape[1], -1, q.shape[3]))
        scaling = self.options.get("scaling") or q.shape[-1] ** -0.5
        scores = (q.float() @ repeat_heads(k, q.shape[1]).float().mT) * scaling
        if cap := self.options.get("softcap"):
            scores = cap * torch.tanh(scores / cap)
        visible = torch.arange(k.shape[2], device=k.device) <= rows[:, None, :, None]
        mask = self.mask
        if mask is not None and mask.dim() == 2:  # padding of the keys, as flash attention has it
            visible = visible & mask[:, None, None, -k.shape[2] :].bool()
        elif mask is not None:
            index = rows[:, None, :, None].expand(-1, mask.shape[1], -1, mask.shape[3])
            at_rows = mask.expand(len(rows), -1, -1, -1).gather(2, index)
            visible = visible & (at_rows if at_rows.dtype == torch.bool else at_rows > MASKED)
        return scores.masked_fill(~visible, -torch.inf)

    def maps(self, rows: Tensor) -> Tensor:
        """Return the attention maps of some queries.

        Args:
            rows: [B, n], the positions of the queries.

        Returns:
            [B, h, n, T] in fp32. With a learned sink, rows sum to less than 1.
        """
        scores = self.scores(rows)
        sinks = self.options.get("s_aux")
        if sinks is None:
            return torch.softmax(scores, dim=-1)
        extra = sinks.float()[None, :, None, None].expand(*scores.shape[:3], 1)
        return torch.softmax(torch.cat([scores, extra], dim=-1), dim=-1)[..., :-1]


Hook = Callable[[AttentionCall], None]
_HOOKS: list[Hook] = []


@contextlib.contextmanager
def attention_hook(model: PreTrainedModel, hook: Hook) -> Iterator[None]:
    """Call `hook` with each layer's attention, in the order of the layers, within this context.

    Args:
        model: any model that uses transformers' attention interface.
        hook: receives an `AttentionCall` per layer and forward pass.
    """
    configs = {id(m.config): m.config for m in model.modules() if isinstance(m, PreTrainedModel)}
    before = {key: config._attn_implementation for key, config in configs.items()}
    _HOOKS.append(hook)
    try:
        for key, config in configs.items():
            # Not set_attn_implementation: it would check the name against what the model supports.
            config._attn_implementation_internal = _hooked(before[key] or "eager")
        yield
    finally:
        _HOOKS.remove(hook)
        for key, config in configs.items():
            config._attn_implementation_internal = before[key]


def _hooked(implementation: str) -> str:
    """Register an attention function that also calls the hooks; return its name."""
    name = PREFIX + implementation

    def attend(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **kwargs: Any
    ) -> tuple[Tensor, Any]:
        inner = _attention_of(implementation, module)
        out, weights = inner(module, query, key, value, mask, **kwargs)
        for hook in _HOOKS:
            hook(AttentionCall(query, key, mask, kwargs, out))
        return out, weights

    if name not in ALL_ATTENTION_FUNCTIONS:
        AttentionInterface.register(name, attend)
        if implementation in ALL_MASK_ATTENTION_FUNCTIONS:
            AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS[implementation])
    return name


def _attention_of(implementation: str, module: nn.Module) -> Callable[..., Any]:
    """Return the function that the model would have used; eager ones are in the model's module."""
    if implementation == "eager":
        home = sys.modules[type(module).__module__]
        return getattr(home, "eager_attention_forward")  # noqa: B009
    return ALL_ATTENTION_FUNCTIONS[implementation]
