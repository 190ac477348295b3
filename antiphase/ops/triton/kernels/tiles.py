"""The tiles that each kernel may use, by width class, dtype and architecture.

All of them were compiled for the architectures (`antiphase bench gpu-static`): those for 16 bits,
and those of gfx942, without spilled registers. A tile that was not compiled must not be here: some
give a kernel without instructions, which a measurement would find fastest. The first of a list is
the choice where nothing can be measured.
"""

from dataclasses import asdict, dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Shape:
    """What the choice of tiles depends on: padded widths, dtype, number of maps."""

    d: int
    d2: int
    dv: int
    dtype: torch.dtype
    maps: int
    shared: bool  # both maps have the same keys

    @property
    def width_class(self) -> str:
        """Return the class of the widths: the first whose d and dv are wide enough."""
        d = max(self.d, self.d2)
        return next(name for name, (D, DV) in WIDTHS.items() if d <= D and self.dv <= DV)

    @property
    def fused(self) -> bool:
        """Tell whether one forward kernel has both accumulators (see `forward.py`)."""
        return self.maps == 2 and self.dv <= 128


@dataclass(frozen=True)
class Tile:
    """Query rows, keys, warps and pipeline stages of a program."""

    BM: int
    BN: int
    warps: int
    stages: int
    hoist: bool = True  # loop-invariant code is moved out of the loop: fewer loads, more registers

    @property
    def options(self) -> dict[str, Any]:
        """Return the tile as arguments of a kernel."""
        tile = {"BM": self.BM, "BN": self.BN, "HOIST": self.hoist}
        return tile | {"num_warps": self.warps, "num_stages": self.stages}

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name."""
        return asdict(self)


WIDTHS = {"narrow": (32, 64), "medium": (64, 128), "large": (128, 128), "wide": (128, 256)}
MOST_D, MOST_DV = WIDTHS["wide"]


def padded_width(n: int) -> int:
    """Return the width of a block that holds n channels: a power of 2, at least 16."""
    return max(16, 1 << (n - 1).bit_length())


def candidates(kernel: str, shape: Shape, architecture: str) -> tuple[list[Tile], list[Tile]]:
    """Return the tiles to measure, the preferred one first, and those to try if none of them fits.

    Args:
        kernel: "forward", "dq", "dkv" or "decode".
        shape: Of the call.
        architecture: A key of `TILES`.
    """
    bits = 32 if shape.dtype == torch.float32 else 16
    return TILES[architecture, bits, kernel][shape.width_class], SMALL[bits][kernel]


def _by_width(*tiles: Tile | tuple[Tile, ...]) -> dict[str, list[Tile]]:
    lists = ([t] if isinstance(t, Tile) else [*t] for t in tiles)
    return dict(zip(WIDTHS, lists, strict=True))


_KEEP = False  # loop-invariant code stays in the loop
# (architecture, bits of the dtype, kernel) -> width class -> tiles
TILES = {
    ("sm_80", 16, "forward"): _by_width(
        (Tile(128, 64, 8, 2), Tile(64, 32, 4, 2)),
        Tile(64, 32, 8, 2),
        Tile(64, 32, 8, 1, _KEEP),
        Tile(64, 32, 8, 1),
    ),
    ("sm_90", 16, "forward"): _by_width(
        (Tile(128, 64, 8, 3), Tile(64, 64, 4, 2)),
        Tile(128, 32, 8, 2),
        Tile(64, 32, 8, 2),
        (Tile(128, 32, 8, 2, _KEEP), Tile(64, 32, 4, 2)),
    ),
    ("sm_100", 16, "forward"): _by_width(
        (Tile(128, 64, 8, 2), Tile(64, 64, 4, 2)),
        Tile(128, 64, 8, 2),
        Tile(128, 32, 8, 2),
        Tile(128, 32, 8, 2),
    ),
    ("gfx942", 16, "forward"): _by_width(
        Tile(128, 64, 8, 1), Tile(128, 32, 8, 1), Tile(64, 32, 4, 1), Tile(128, 32, 8, 1, _KEEP)
    ),
    ("sm_80", 16, "dq"): _by_width(
        (Tile(64, 64, 8, 2), Tile(64, 32, 4, 2)),
        Tile(64, 32, 8, 1),
        Tile(32, 64, 8, 1, _KEEP),
        Tile(32, 64, 8, 1),
    ),
    ("sm_90", 16, "dq"): _by_width(
        (Tile(64, 64, 8, 2), Tile(64, 64, 4, 2)),
        (Tile(64, 64, 8, 2), Tile(64, 32, 4, 2)),
        Tile(64, 64, 8, 1, _KEEP),
        Tile(64, 64, 8, 1, _KEEP),
    ),
    ("sm_100", 16, "dq"): _by_width(
        Tile(64, 64, 8, 2), Tile(64, 64, 8, 2), Tile(64, 64, 8, 2), Tile(64, 64, 8, 2)
    ),
    ("gfx942", 16, "dq"): _by_width(
        Tile(64, 64, 4, 2), Tile(64, 64, 4, 2), Tile(64, 32, 4, 2), Tile(64, 32, 4, 2)
    ),
    ("sm_80", 16, "dkv"): _by_width(
        Tile(32, 64, 8, 1),
        Tile(32, 32, 4, 1),
        Tile(16, 32, 4, 1, _KEEP),
        Tile(32, 32, 8, 1, _KEEP),
    ),
    ("sm_90", 16, "dkv"): _by_width(
        (Tile(64, 64, 8, 2, _KEEP), Tile(32, 64, 4, 2)),
        Tile(64, 64, 8, 1, _KEEP),
        Tile(32, 64, 8, 1, _KEEP),
        (Tile(64, 32, 8, 1, _KEEP), Tile(32, 32, 8, 1, _KEEP)),
    ),
    ("sm_100", 16, "dkv"): _by_width(
        Tile(64, 64, 8, 2), Tile(64, 64, 8, 2), Tile(64, 64, 8, 2), Tile(64, 64, 8, 1, _KEEP)
    ),
    ("gfx942", 16, "dkv"): _by_width(
        Tile(32, 64, 4, 2), Tile(32, 64, 4, 1), Tile(32, 64, 4, 1), Tile(32, 32, 4, 1, _KEEP)
    ),
    ("sm_80", 16, "decode"): _by_width(
        (Tile(32, 64, 8, 2), Tile(32, 128, 4, 2)),
        (Tile(32, 64, 4, 2), Tile(32, 64, 8, 2)),
        (Tile(32, 32, 4, 2), Tile(32, 64, 8, 2)),
        (Tile(32, 32, 8, 2), Tile(32, 64, 8, 2)),
    ),
    ("sm_90", 16, "decode"): _by_width(
        (Tile(32, 64, 4, 2), Tile(32, 64, 8, 2)),
        (Tile(32, 64, 4, 2), Tile(32, 64, 8, 2)),
        (Tile(32, 32, 4, 2), Tile(32, 64, 8, 2)),
        Tile(32, 64, 8, 2),
    ),
    ("sm_100", 16, "decode"): _by_width(
        Tile(32, 64, 4, 2),
        (Tile(32, 64, 4, 2), Tile(32, 64, 8, 2)),
        (Tile(32, 32, 4, 2), Tile(32, 64, 8, 2)),
        Tile(32, 64, 8, 2),
    ),
    ("gfx942", 16, "decode"): _by_width(
        Tile(32, 64, 4, 1), Tile(32, 64, 4, 1), Tile(32, 32, 4, 1), Tile(32, 32, 4, 1)
    ),
    ("gfx942", 32, "forward"): _by_width(*[Tile(64, 32, 8, 1, _KEEP)] * 4),
    ("gfx942", 32, "dq"): _by_width(*[Tile(32, 32, 4, 1, _KEEP)] * 4),
    ("gfx942", 32, "dkv"): _by_width(*[Tile(16, 32, 4, 1, _KEEP)] * 4),
    ("gfx942", 32, "decode"): _by_width(*[Tile(32, 16, 4, 1, _KEEP)] * 4),
    # tf32x3 holds each operand twice: these spill (docs/results/gpu-static.md).
    **{
        (architecture, 32, kernel): _by_width(*[tile] * 4)
        for architecture in ("sm_80", "sm_90", "sm_100")
        for kernel, tile in {
            "forward": Tile(64, 32, 8, 1),
            "dq": Tile(16, 32, 8, 1, _KEEP),
            "dkv": Tile(16, 16, 8, 1, _KEEP),
            "decode": Tile(32, 16, 8, 1, _KEEP),
        }.items()
    },
}
# For devices with little shared memory, by bits of the dtype: tried where none of the others fits.
# Some spill a few registers.
_FEW_KEYS = [Tile(32, 16, 4, 1, _KEEP)]
_BLOCKS = {
    16: [Tile(32, 32, 4, 1, _KEEP), Tile(16, 16, 4, 1, _KEEP)],
    32: [Tile(16, 16, 4, 1, _KEEP)],
}
SMALL = {
    bits: {"forward": tiles, "dq": tiles, "dkv": tiles, "decode": _FEW_KEYS}
    for bits, tiles in _BLOCKS.items()
}
