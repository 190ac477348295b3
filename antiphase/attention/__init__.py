"""Attention mechanisms as modules: one a file, all by name in `registry`."""

from antiphase.attention.base import Attention
from antiphase.attention.diff_v1 import DiffV1
from antiphase.attention.diff_v2 import DiffV2
from antiphase.attention.fixed_noise import FixedNoise
from antiphase.attention.gated import Gated
from antiphase.attention.grouped import Grouped
from antiphase.attention.heads import Cache, Heads
from antiphase.attention.low_dim_noise import LowDimNoise
from antiphase.attention.low_rank_noise import LowRankNoise
from antiphase.attention.registry import MECHANISMS, mechanism
from antiphase.attention.signed_mask import SignedMask
from antiphase.attention.sink import Sink
from antiphase.attention.standard import Standard
from antiphase.attention.top_k import TopK

__all__ = [
    "MECHANISMS",
    "Attention",
    "Cache",
    "DiffV1",
    "DiffV2",
    "FixedNoise",
    "Gated",
    "Grouped",
    "Heads",
    "LowDimNoise",
    "LowRankNoise",
    "SignedMask",
    "Sink",
    "Standard",
    "TopK",
    "mechanism",
]
