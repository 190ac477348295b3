"""Analysis: the attention maps of one model, metrics on them, and finished runs side by side."""

from antiphase.analysis.branch_rms import BranchRMS, branch_rms
from antiphase.analysis.capture import CapturedMaps, LayerMaps, capture
from antiphase.analysis.ground_truth import GroundTruth, ground_truth
from antiphase.analysis.notebook import Shown, show
from antiphase.analysis.retrieval_heads import RetrievalHeads, retrieval_heads

__all__ = [
    "BranchRMS",
    "CapturedMaps",
    "GroundTruth",
    "LayerMaps",
    "RetrievalHeads",
    "Shown",
    "branch_rms",
    "capture",
    "ground_truth",
    "retrieval_heads",
    "show",
]
