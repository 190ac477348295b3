"""Attention as pure tensor functions: one attention map, or the difference of two, applied to V."""

from antiphase.ops.arguments import (
    causal_mask,
    repeat_heads,
    statistics_dtype,
    without_autocast,
)
from antiphase.ops.cumulative import linear_attention, linear_map, prefix_attention, prefix_map
from antiphase.ops.delta import delta_map, delta_rule, delta_rule_recurrent
from antiphase.ops.dispatch import Choice
from antiphase.ops.documents import documents_from_cu_seqlens, documents_from_position_ids
from antiphase.ops.dropout import dropout_mask
from antiphase.ops.functional import (
    Maps,
    apply_map,
    attention,
    attention_map,
    attention_maps,
    backend_for,
    diff_attention,
    rectified_attention,
    visible_keys,
)
from antiphase.ops.fused_cpu import linear
from antiphase.ops.norm import rms_norm
from antiphase.ops.reference import rectify
from antiphase.ops.rotary import rotary_table, rotate
from antiphase.ops.short_convolution import short_convolution
from antiphase.ops.threshold import threshold_attention, threshold_maps

__all__ = [
    "Choice",
    "Maps",
    "apply_map",
    "attention",
    "attention_map",
    "attention_maps",
    "backend_for",
    "causal_mask",
    "delta_map",
    "delta_rule",
    "delta_rule_recurrent",
    "diff_attention",
    "documents_from_cu_seqlens",
    "documents_from_position_ids",
    "dropout_mask",
    "linear",
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
    "short_convolution",
    "statistics_dtype",
    "threshold_attention",
    "threshold_maps",
    "visible_keys",
    "without_autocast",
]
