"""Replace the attention of another library's differential model by the fused op, in place."""

import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from antiphase.attention.projections import apply_linear
from antiphase.ops import diff_attention


@dataclass(frozen=True)
class Acceleration:
    """What `accelerate` changed; `undo` restores it."""

    model: nn.Module
    layers: tuple[nn.Module, ...]  # whose forward was replaced
    forwards: tuple[Callable[..., Any], ...]  # the replacements
    implementation: str | None  # the model's attn_implementation before

    def undo(self) -> None:
        """Restore every layer's own forward, unless it has been replaced again since."""
        ours = [
            layer
            for layer, forward in zip(self.layers, self.forwards, strict=True)
            if layer.__dict__.get("forward") is forward
        ]
        for layer in ours:
            del layer.forward
        if ours and self.implementation is not None:
            self.model.set_attn_implementation(self.implementation)  # type: ignore[operator]


def accelerate(model: nn.Module) -> Acceleration:
    """Make an existing DiffLlama (transformers) or timm differential model use the fused op.

    Args:
        model: changed in place; its weights and outputs stay the same.

    Returns:
        A handle; its `undo()` restores the model.

    Raises:
        ValueError: the model has no known differential layer, or is accelerated already.
    """
    layers = []
    for layer in model.modules():
        forward = _FORWARDS.get((type(layer).__module__, type(layer).__name__))
        if forward is None:
            continue
        if "forward" in layer.__dict__:
            raise ValueError(
                f"{type(model).__name__}: is accelerated already, or patched by another library"
            )
        layers.append((layer, forward))
    if not layers:
        known = ", ".join(f"{name} of {module}" for module, name in _FORWARDS)
        raise ValueError(f"{type(model).__name__}: has no layer that accelerate knows: {known}")
    forwards = tuple(types.MethodType(forward, layer) for layer, forward in layers)
    for (layer, _), bound in zip(layers, forwards, strict=True):
        layer.forward = bound
    implementation = getattr(getattr(model, "config", None), "_attn_implementation", None)
    if implementation not in (None, "sdpa"):  # only sdpa's masks are boolean, or None
        model.set_attn_implementation("sdpa")  # type: ignore[operator]
    return Acceleration(model, tuple(layer for layer, _ in layers), forwards, implementation)


def _diffllama_forward(
    self: Any,
    hidden_states: Tensor,
    position_embeddings: tuple[Tensor, Tensor],
    attention_mask: Tensor | None = None,
    past_key_values: Any = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Run DiffLlamaAttention in one fused call: head i paired with i + H/2, V's halves joined."""
    if kwargs.get("output_attentions") or self.config.output_attentions:
        raise ValueError("output_attentions: an accelerated model has no maps; undo() it first")
    from transformers.models.diffllama.modeling_diffllama import apply_rotary_pos_emb

    shape = (*hidden_states.shape[:-1], -1, self.head_dim)
    q = apply_linear(self.q_proj, hidden_states).view(shape).transpose(1, 2)
    k = apply_linear(self.k_proj, hidden_states).view(shape).transpose(1, 2)
    v = apply_linear(self.v_proj, hidden_states).view(shape).transpose(1, 2)
    q, k = apply_rotary_pos_emb(q, k, *position_embeddings)
    if past_key_values is not None:
        k, v = past_key_values.update(k, v, self.layer_idx)
    T, causal = q.shape[2], attention_mask is None
    if causal and 1 < T < k.shape[2]:  # prefill of a static cache: keys behind T are unwritten
        k, v = k[:, :, :T], v[:, :, :T]
    (q1, q2), (k1, k2) = q.chunk(2, dim=1), k.chunk(2, dim=1)
    v = torch.cat(v.chunk(2, dim=1), dim=-1)
    lam = _lambda(self).to(q.dtype)
    o = diff_attention(
        q1, k1, q2, k2, v, lam, causal=causal, mask=attention_mask, scale=self.scaling,
        scale2=self.scaling,
    )  # fmt: skip
    o = (1 - self.lambda_init) * self.groupnorm(o)
    return apply_linear(self.o_proj, o.transpose(1, 2).flatten(2)), None


def _timm_forward(
    self: Any, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
) -> Tensor:
    """Run timm's DiffAttention in one fused call: adjacent pairs, no RoPE."""
    if self.training and self.attn_drop_p > 0:
        raise ValueError(
            f"attn_drop: {self.attn_drop_p} in training, but the fused op has no map to apply "
            "dropout to; set it to 0 or undo()"
        )
    h, d = self.num_heads, self.head_dim
    q, k, v = self.qkv(x).chunk(3, dim=2)
    q, k = (t.unflatten(-1, (2 * h, d)).transpose(1, 2) for t in (q, k))
    q, k = self.q_norm(q), self.k_norm(k)
    (q1, q2), (k1, k2) = (t.unflatten(1, (h, 2)).unbind(2) for t in (q, k))
    v = v.unflatten(-1, (h, 2 * d)).transpose(1, 2)
    lam = self._compute_lambda().to(q.dtype)
    o = diff_attention(q1, k1, q2, k2, v, lam, causal=is_causal, mask=attn_mask)
    o = self.sub_norm(o) * (1 - self.lambda_init)
    return self.proj_drop(self.proj(self.norm(o.transpose(1, 2).flatten(2))))


def _lambda(layer: Any) -> Tensor:
    """Return lam of a DiffLlamaAttention, rounded as there."""
    first, second = (
        torch.exp(torch.sum(q * k, dim=-1, dtype=torch.float32)).to(layer.q_proj.weight.dtype)
        for q, k in ((layer.lambda_q1, layer.lambda_k1), (layer.lambda_q2, layer.lambda_k2))
    )
    return first - second + layer.lambda_init


_FORWARDS: dict[tuple[str, str], Callable[..., Any]] = {
    ("transformers.models.diffllama.modeling_diffllama", "DiffLlamaAttention"): _diffllama_forward,
    ("timm.layers.diff_attention", "DiffAttention"): _timm_forward,
}
