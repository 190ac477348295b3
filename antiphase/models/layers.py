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
from antiphase.models.masks import OpsMask
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
    """

    def __init__(self, hidden_size: int, width: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, width, bias=False)
        self.up_proj = nn.Linear(hidden_size, width, bias=False)
        self.down_proj = nn.Linear(width, hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, T, D]."""
        gate, up = apply_linear(self.gate_proj, x), apply_linear(self.up_proj, x)
        return apply_linear(self.down_proj, F.silu(gate) * up)


class ReLU(nn.Module):
    """down(relu(up(x))), the feed-forward layer of the 2017 Transformer.

    Args:
        hidden_size: D.
        width: of the hidden layer.
    """

    def __init__(self, hidden_size: int, width: int) -> None:
        super().__init__()
        self.up_proj = nn.Linear(hidden_size, width, bias=False)
        self.down_proj = nn.Linear(width, hidden_size, bias=False)

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
    """x + attention(norm(x)), then x + feed_forward(norm(x)).

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
        self.mlp = kind(config.hidden_size, width)
        self.input_layernorm = norm_of(config)
        self.post_attention_layernorm = norm_of(config)

    def forward(
        self,
        x: Tensor,
        *,
        mask: OpsMask,
        rotary: Rotary,
        cache: Cache | None,
        backend: str,
        return_map: bool,
        function_arguments: dict[str, Any] | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Run one block.

        Args:
            x: [B, T, D].
            mask: with the causal flag and the documents of packed sequences.
            rotary: RoPE's cos and sin; empty without RoPE.
            cache: of this layer, or None.
            backend: of `antiphase.ops`.
            return_map: also return the attention map.
            function_arguments: of the attention function that `backend` names; None for an op.

        Returns:
            [B, T, D], and the map that is applied to V, [B, h, T, Tk], or None.
        """
        out: Any = self.self_attn(
            self.input_layernorm(x),
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
        x = x + out
        return x + self.mlp(self.post_attention_layernorm(x)), maps.get("difference")
