"""Every mechanism by its name. A new one is a new file and a line here."""

from antiphase.attention.base import Attention
from antiphase.attention.diff_v1 import DiffV1
from antiphase.attention.diff_v2 import DiffV2
from antiphase.attention.fixed_noise import FixedNoise
from antiphase.attention.gated import Gated
from antiphase.attention.grouped import Grouped
from antiphase.attention.low_dim_noise import LowDimNoise
from antiphase.attention.low_rank_noise import LowRankNoise
from antiphase.attention.signed_mask import SignedMask
from antiphase.attention.sink import Sink
from antiphase.attention.standard import Standard
from antiphase.attention.top_k import TopK

MECHANISMS: dict[str, type[Attention]] = {
    mechanism.name: mechanism
    for mechanism in (
        Standard,
        DiffV1,
        DiffV2,
        Grouped,
        LowDimNoise,
        LowRankNoise,
        FixedNoise,
        TopK,
        SignedMask,
        Gated,
        Sink,
    )
}


def mechanism(name: str) -> type[Attention]:
    """Return the class of a mechanism, or say which names there are."""
    if name not in MECHANISMS:
        raise ValueError(f"attention: got {name!r}, allowed are {', '.join(MECHANISMS)}")
    return MECHANISMS[name]
