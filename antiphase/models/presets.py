"""Model sizes by name: small ones for a laptop, and those of the paper (arXiv 2410.05258)."""

from typing import Any

from antiphase.models.config import AntiphaseConfig
from antiphase.options import nearest

_PAPER = {"vocab_size": 100_288, "max_position_embeddings": 4096}

# Heads are those of standard attention; V1 and its variants have half of them.
_SHAPES = {  # hidden_size, num_hidden_layers, num_attention_heads
    "nano": (128, 2, 4),
    "micro": (256, 4, 8),
    "mini": (384, 6, 12),
    "small": (768, 12, 12),
    "830m": (1536, 24, 16),
    "1.4b": (2048, 24, 16),
    "2.8b": (2560, 32, 20),
    "6.8b": (4096, 32, 32),
    "13.1b": (5120, 40, 40),
}
_VOCABULARIES = {"nano": 128, "micro": 512, "mini": 4096, "small": 32_000}
PAPER_SIZES = tuple(name for name in _SHAPES if name not in _VOCABULARIES)
PRESETS: dict[str, dict[str, Any]] = {
    name: {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        **({"vocab_size": _VOCABULARIES[name]} if name in _VOCABULARIES else _PAPER),
    }
    for name, (width, layers, heads) in _SHAPES.items()
}


def preset(name: str, attention: str = "diff_v2", **changes: Any) -> AntiphaseConfig:
    """Return the configuration of a preset.

    Args:
        name: of the preset, as in `PRESETS`.
        attention: name of the mechanism.
        **changes: any field of `AntiphaseConfig`.

    Raises:
        ValueError: no such preset, mechanism or field; says what is allowed.
    """
    if name not in PRESETS:
        raise ValueError(
            f"preset: got {name!r}, allowed are {', '.join(PRESETS)}{nearest(name, PRESETS)}"
        )
    fields = {**PRESETS[name], "tie_word_embeddings": True, **changes}
    return AntiphaseConfig(attention=attention, **fields)
