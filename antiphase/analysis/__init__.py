"""Analysis: the attention maps of one model, metrics on them, and finished runs side by side."""

from antiphase.analysis.capture import CapturedMaps, LayerMaps, capture
from antiphase.analysis.ground_truth import GroundTruth, ground_truth

__all__ = ["CapturedMaps", "GroundTruth", "LayerMaps", "capture", "ground_truth"]
