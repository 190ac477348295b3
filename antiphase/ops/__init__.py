"""Attention as pure tensor functions: one attention map, or the difference of two, applied to V."""

from antiphase.ops.arguments import (
    causal_mask,
    repeat_heads,
    statistics_dtype,
    without_autocast,
)
from antiphase.ops.cumulative import linear_attention, linear_map, prefix_attention, prefix_map
from antiphase.ops.dispatch import Choice
from antiphase.ops.functional import (
    Maps,
    attention,
    attention_map,
    attention_maps,
    backend_for,
    diff_attention,
    rectified_attention,
)
from antiphase.ops.norm import rms_norm
from antiphase.ops.reference import rectify
from antiphase.ops.rotary import rotary_table, rotate

__all__ = [
    "Choice",
    "Maps",
    "attention",
    "attention_map",
    "attention_maps",
    "backend_for",
    "causal_mask",
    "diff_attention",
    "linear_attention",
    "linear_map",
    "prefix_attention",
    "prefix_map",
    "rectified_attention",
    "rectify",
    "repeat_heads",
    "rms_norm",
    "rotary_table",
    "rotate",
    "statistics_dtype",
    "without_autocast",
]
