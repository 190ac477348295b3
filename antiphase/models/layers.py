"""Norms, feed-forward layers, position encodings, and the block that combines them."""

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from antiphase.attention.heads import Cache, Rotary
from antiphase.attention.parts import Float32Parameters
from antiphase.attention.projections import apply_linear
from antiphase.models.config import AntiphaseConfig
from antiphase.models.masks import BACKENDS, OpsMask
from antiphase.ops import rms_norm


class RMSNorm(nn.Module):
    """RMS norm with a gain, computed in fp32.

    Args:
        width: of the last dimension.
        eps: added to the mean square.
    """

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Return x [..., width], normalised."""
        gain = self.weight if self.weight.dtype == torch.float64 else self.weight.float()
        return rms_norm(x, gain, self.eps)


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x)).

    Args:
        hidden_size: D.
        width: of the hidden layer.
        bias: whether the layers have biases.
    """

    def __init__(self, hidden_size: int, width: int, bias: bool) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, width, bias)
        self.up_proj = nn.Linear(hidden_size, width, bias)
        self.down_proj = nn.Linear(width, hidden_size, bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, T, D]."""
        gate, up = apply_linear(self.gate_proj, x), apply_linear(self.up_proj, x)
        return apply_linear(self.down_proj, F.silu(gate) * up)


class ReLU(nn.Module):
    """down(relu(up(x))), the feed-forward layer of the 2017 Transformer.

    Args:
        hidden_size: D.
        width: of the hidden layer.
        bias: whether the layers have biases.
    """

    def __init__(self, hidden_size: int, width: int, bias: bool) -> None:
        super().__init__()
        self.up_proj = nn.Linear(hidden_size, width, bias)
        self.down_proj = nn.Linear(width, hidden_size, bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, T, D]."""
        return apply_linear(self.down_proj, F.relu(apply_linear(self.up_proj, x)))


def norm_of(config: AntiphaseConfig) -> nn.Module:
    """Return a norm over the model's width, of the configured kind."""
    if config.norm == "layer":
        return nn.LayerNorm(config.hidden_size, eps=config.rms_norm_eps)
    return RMSNorm(config.hidden_size, config.rms_norm_eps)


class RotaryPositions(Float32Parameters):
    """transformers' RoPE (theta and scaling types), for each head width that a layer has.

    Its frequencies stay in fp32: rounded to bf16, an angle is off by radians after a thousand
    tokens.

    Args:
        config: of the model, with its `rope_parameters`.
        widths: of the heads that RoPE rotates.
    """

    def __init__(self, config: AntiphaseConfig, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.widths = widths
        self.by_width = nn.ModuleList(_rotary_of(config, width) for width in widths)

    def init_parameters(self) -> None:
        """Do nothing: there are only buffers, which transformers initialises."""

    def forward(self, x: Tensor, positions: Tensor) -> Rotary:
        """Return cos and sin [B | 1, T, width] by width, at positions [B | 1, T]."""
        return {
            width: embedding(x, position_ids=positions)
            for width, embedding in zip(self.widths, self.by_width, strict=True)
        }


def _rotary_of(config: AntiphaseConfig, width: int) -> LlamaRotaryEmbedding:
    if width != config.head_dim:
        config = copy.copy(config)
        config.head_dim = width  # the only way to tell LlamaRotaryEmbedding a width
    return LlamaRotaryEmbedding(config)


def sinusoidal(positions: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """Return the 2017 Transformer's position encodings: sines, then cosines.

    Args:
        positions: [B | 1, T].
        width: D.
        dtype: of the result; angles are computed in fp32.

    Returns:
        [B | 1, T, D].
    """
    half = torch.arange(0, width, 2, device=positions.device, dtype=torch.float32)
    angles = positions[..., None].float() * 10000.0 ** (-half / width)
    return torch.cat([angles.sin(), angles.cos()], dim=-1)[..., :width].to(dtype)


class Block(GradientCheckpointingLayer):
    """Attention, then cross-attention in a decoder that has an encoder, then feed-forward.

    Each is a branch f of the residual stream: x + f(norm(x)), or with post-norm norm(x + f(x)).

    Args:
        config: of the model.
        layer: index of the block, from 0.
        width: of the feed-forward layer.
    """

    def __init__(self, config: AntiphaseConfig, layer: int, width: int) -> None:
        super().__init__()
        kind = {"swiglu": SwiGLU, "relu": ReLU}[config.feed_forward]
        self.self_attn = config.attention_layer(layer)
        self.self_attn.config = config  # names the attention function
        self.self_attn.is_causal = config.is_causal
        self.mlp = kind(config.hidden_size, width, config.mlp_bias)
        self.input_layernorm = norm_of(config)
        self.post_attention_layernorm = norm_of(config)
        self.cross_attn = config.cross_attention_layer(layer)
        if self.cross_attn is not None:
            self.cross_attention_layernorm = norm_of(config)
        self.post_norm = config.norm_position == "post"
        self.dropout = nn.Dropout(config.residual_dropout)

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        mask: OpsMask,
        rotary: Rotary,
        cache: Cache | None,
        backend: str,
        return_map: bool,
        function_arguments: dict[str, Any] | None = None,
        context_mask: Tensor | None = None,
        context_cache: Cache | None = None,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Run one block.

        Args:
            x: [B, T, D].
            context: [B, S, D], what cross-attention reads; no tokens of it ([B, 0, D]) where
                `context_cache` has the keys and values of all.
            mask: with the causal flag and the documents of packed sequences.
            rotary: RoPE's cos and sin; empty without RoPE.
            cache: of this layer, or None.
            backend: of `antiphase.ops`.
            return_map: also return the attention maps.
            function_arguments: of the attention function that `backend` names; None for an op.
            context_mask: boolean padding mask of the context, [B, S].
            context_cache: of this layer's cross-attention, or None.

        Returns:
            [B, T, D], and the maps that are applied to V, of attention [B, h, T, Tk] and of
            cross-attention [B, h, T, S], or None.
        """
        out: Any = self.self_attn(
            self._before(x, self.input_layernorm),
            causal=mask.causal,
            mask=mask.mask,
            documents=mask.documents,
            rotary=rotary,
            cache=cache,
            backend=backend,
            return_maps=return_map,
            function_arguments=function_arguments,
        )
        out, maps = out if return_map else (out, {})
        x = self._after(x, out, self.input_layernorm)
        cross_maps: dict[str, Tensor] = {}
        if self.cross_attn is not None:
            if context is None:
                raise ValueError(
                    "context: cross-attention needs the encoder's output; call the decoder through "
                    "AntiphaseForConditionalGeneration"
                )
            out = self.cross_attn(
                self._before(x, self.cross_attention_layernorm),
                context,
                mask=context_mask,
                rotary={},  # positions of two sequences have no distance
                cache=context_cache,
                backend=backend if backend in BACKENDS else "auto",
                return_maps=return_map,
            )
            out, cross_maps = out if return_map else (out, {})
            x = self._after(x, out, self.cross_attention_layernorm)
        out = self.mlp(self._before(x, self.post_attention_layernorm))
        x = self._after(x, out, self.post_attention_layernorm)
        return x, maps.get("difference"), cross_maps.get("difference")

    def _before(self, x: Tensor, norm: nn.Module) -> Any:
        """Return the input of a branch."""
        return x if self.post_norm else norm(x)

    def _after(self, x: Tensor, out: Tensor, norm: nn.Module) -> Any:
        """Return the residual stream after a branch."""
        x = x + self.dropout(out)
        return norm(x) if self.post_norm else x
