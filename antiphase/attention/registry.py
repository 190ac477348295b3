"""Every mechanism by its name. A new one is a new file in this folder and a line here.

Nothing is imported before it is used, so that names can be listed without loading PyTorch.
"""

import importlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from antiphase.attention.base import Attention

CLASSES = {  # the mechanism's name, which is its file's, and the class in it
    "standard": "Standard",
    "diff_v1": "DiffV1",
    "diff_v2": "DiffV2",
    "grouped": "Grouped",
    "low_dim_noise": "LowDimNoise",
    "low_rank_noise": "LowRankNoise",
    "fixed_noise": "FixedNoise",
    "top_k": "TopK",
    "signed_mask": "SignedMask",
    "gated": "Gated",
    "sink": "Sink",
    "rectified": "Rectified",
    "simplex": "Simplex",
    "foreign_noise": "ForeignNoise",
    "dint": "Dint",
    "threshold": "Threshold",
    "linear": "Linear",
    "shared_diff": "SharedDiff",
    "delta": "Delta",
    "grouped_latent": "GroupedLatent",
    "gru": "Gru",
    "lstm": "Lstm",
}


class Mechanisms(Mapping[str, "type[Attention]"]):
    """The classes of `CLASSES` by name, each imported when it is looked up."""

    def __getitem__(self, name: str) -> "type[Attention]":
        class_name = CLASSES[name]
        module = importlib.import_module(f"antiphase.attention.{name}")
        found: type[Attention] = getattr(module, class_name)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(CLASSES)

    def __len__(self) -> int:
        return len(CLASSES)


MECHANISMS: Mapping[str, "type[Attention]"] = Mechanisms()


def mechanism(name: str) -> "type[Attention]":
    """Return the class of a mechanism.

    Raises:
        ValueError: there is none of that name; says which names there are.
    """
    if name not in MECHANISMS:
        from antiphase.options import nearest  # only for the error, not for `import antiphase`

        raise ValueError(
            f"attention: got {name!r}, allowed are {', '.join(MECHANISMS)}"
            f"{nearest(name, MECHANISMS)}"
        )
    return MECHANISMS[name]
