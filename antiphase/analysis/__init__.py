"""The lab: maps, metrics, tests, verdicts, report."""

from antiphase.analysis.capture import Captured, LayerMaps, capture
from antiphase.analysis.ground_truth import Truth, truth_of

__all__ = ["Captured", "LayerMaps", "Truth", "capture", "truth_of"]
