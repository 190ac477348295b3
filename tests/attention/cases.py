"""Every mechanism at a small size."""

import pytest
import torch

from antiphase.attention import MECHANISMS, Attention

NAMES = list(MECHANISMS)
SMALL = {
    "top_k": {"k": 5},
    "low_dim_noise": {"rank": 4},
    "low_rank_noise": {"rank": 3},
    "shared_diff": {"rank": 4},
    "threshold": {"beta": 0.1},  # at 1, heads of width 8 have hardly a weight
}
MAPPED = [name for name in NAMES if MECHANISMS[name].has_maps]
MIXED = pytest.mark.skip(reason="a sequence's output depends on the next sequence of its batch")


def small(name: str, kv_heads: int = 8, **fields: object) -> Attention:
    """Return a layer of width 64, on a baseline of 8 heads of 8."""
    torch.manual_seed(0)
    options = {**SMALL.get(name, {}), **fields}
    return MECHANISMS[name](64, 8, kv_heads, **options)


# For what holds only where sequences do not depend on each other.
INDEPENDENT = [
    pytest.param(name, marks=MIXED) if small(name).mixes_sequences else name for name in NAMES
]


def tokens(B: int = 2, T: int = 21, D: int = 64, dtype: torch.dtype = torch.float32):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(B, T, D, generator=generator, dtype=dtype)
