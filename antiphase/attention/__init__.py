"""Attention mechanisms as modules, one per file; `registry` knows each by its name.

The classes are public names of this package. They derive from the registry and are imported on
first use: `from antiphase.attention import DiffV1`.
"""

from typing import TYPE_CHECKING

from antiphase.attention.registry import CLASSES, MECHANISMS, mechanism
from antiphase.lazy_imports import lazy_names

if TYPE_CHECKING:
    from antiphase.attention.base import Attention as Attention
    from antiphase.attention.for_diffusers import DiffusersProcessor as DiffusersProcessor
    from antiphase.attention.for_timm import timm_layer as timm_layer
    from antiphase.attention.heads import Cache as Cache
    from antiphase.attention.heads import Heads as Heads
    from antiphase.attention.masking import Masking as Masking

_MODULES = {
    **{class_name: name for name, class_name in CLASSES.items()},
    "Attention": "base",
    "Cache": "heads",
    "DiffusersProcessor": "for_diffusers",
    "Heads": "heads",
    "Masking": "masking",
    "timm_layer": "for_timm",
}
__all__ = ["MECHANISMS", "mechanism", *_MODULES]
__getattr__ = lazy_names(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
