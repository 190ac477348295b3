"""DIFF V1 as an attention processor of diffusers, on the projections that a model already has.

    O = norm((softmax(Q1 K1^T / sqrt(d)) - lam softmax(Q2 K2^T / sqrt(d))) V) W_O

Adjacent heads of diffusers' `Attention` are the two maps of one head, and their values side by side
its V of width 2d. diffusers is not imported.
"""

from typing import Any

from torch import Tensor, nn

from antiphase.attention.parts import HeadNorm, Lambda, NoiseOptions, halve_heads
from antiphase.ops import diff_attention
from antiphase.options import build


class DiffusersProcessor(nn.Module):
    """Differential attention for `model.set_attn_processor`; one per layer: lam is learned.

    Args:
        head_dim: width d of the layer's heads, `attn.inner_dim // attn.heads`.
        layer: index of the layer, from 0; lam_init depends on it.
        eps: of the head norm.
        **options: of V1: `lam`, `lam_init`, `head_norm`.
    """

    def __init__(self, head_dim: int, *, layer: int = 0, eps: float = 1e-5, **options: Any) -> None:
        super().__init__()
        self.head_dim = head_dim
        noise: NoiseOptions = build("DiffusersProcessor", NoiseOptions, options)
        self.lam = Lambda(head_dim, layer, noise)
        self.norm = HeadNorm(noise.head_norm, 2 * head_dim, 1.0 - self.lam.init, eps)

    def forward(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        temb: Tensor | None = None,
    ) -> Tensor:
        """Return the layer's output, in the shape of `hidden_states`.

        Args:
            attn: diffusers' `Attention`, whose projections and norms are used.
            hidden_states: [B, T, D], or images [B, D, height, width].
            encoder_hidden_states: [B, Tk, D'], the context of cross-attention.
            attention_mask: as diffusers gives it to its processors.
            temb: of `attn.spatial_norm`.

        Raises:
            ValueError: an odd number of heads.
        """
        residual = hidden_states
        if attn.spatial_norm is not None:
            hidden_states = attn.spatial_norm(hidden_states, temb)
        image = hidden_states.shape[2:] if hidden_states.dim() == 4 else None
        if image is not None:
            hidden_states = hidden_states.flatten(2).transpose(1, 2)
        if attn.group_norm is not None:
            hidden_states = attn.group_norm(hidden_states.transpose(1, 2)).transpose(1, 2)
        context = hidden_states if encoder_hidden_states is None else encoder_hidden_states
        if encoder_hidden_states is not None and attn.norm_cross:
            context = attn.norm_encoder_hidden_states(context)
        h, _ = halve_heads("DiffusersProcessor", attn.heads, attn.heads)
        d, (B, Tk) = self.head_dim, context.shape[:2]
        q, k = attn.to_q(hidden_states), attn.to_k(context)
        q, k = (t.unflatten(-1, (2 * h, d)).transpose(1, 2) for t in (q, k))  # [B, 2h, T, d]
        q = q if attn.norm_q is None else attn.norm_q(q)
        k = k if attn.norm_k is None else attn.norm_k(k)
        (q1, q2), (k1, k2) = (t.unflatten(1, (h, 2)).unbind(2) for t in (q, k))
        v = attn.to_v(context).unflatten(-1, (h, 2 * d)).transpose(1, 2)
        if attention_mask is not None:  # of every head; those of a pair share the first one's
            attention_mask = attn.prepare_attention_mask(attention_mask, Tk, B)
            attention_mask = attention_mask.unflatten(0, (B, 2 * h))[:, ::2]
        o = diff_attention(q1, k1, q2, k2, v, self.lam(hidden_states), mask=attention_mask)
        out: Tensor = self.norm(o).transpose(1, 2).flatten(2)
        for step in attn.to_out:  # W_O, then dropout
            out = step(out)
        if image is not None:
            out = out.transpose(1, 2).unflatten(2, image)
        if attn.residual_connection:
            out = out + residual
        return out / attn.rescale_output_factor
