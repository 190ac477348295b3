"""Weights of other layouts, imported and exported; one file per layout."""

from antiphase.models.weights.convert import convert
from antiphase.models.weights.diffllama import from_diffllama, to_diffllama
from antiphase.models.weights.official import from_official, official_attention

__all__ = ["convert", "from_diffllama", "from_official", "official_attention", "to_diffllama"]
