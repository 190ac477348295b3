"""The lab: maps, metrics, tests, verdicts, report."""

from antiphase.lab.capture import Captured, LayerMaps, capture
from antiphase.lab.truth import Truth, truth_of

__all__ = ["Captured", "LayerMaps", "Truth", "capture", "truth_of"]
