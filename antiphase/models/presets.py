"""Model sizes by name: small ones for a laptop, and the paper's (arXiv 2410.05258)."""

from typing import Any

from antiphase.models.config import AntiphaseConfig

_PAPER = {"vocab_size": 100_288, "max_position_embeddings": 4096}

# Heads are the baseline's; a differential layer of V1's kind has half of them.
PRESETS: dict[str, dict[str, Any]] = {
    "nano": {"hidden_size": 128, "layers": 2, "heads": 4, "vocab_size": 128},
    "micro": {"hidden_size": 256, "layers": 4, "heads": 8, "vocab_size": 512},
    "mini": {"hidden_size": 384, "layers": 6, "heads": 12, "vocab_size": 4096},
    "small": {"hidden_size": 768, "layers": 12, "heads": 12, "vocab_size": 32_000},
    "830m": {"hidden_size": 1536, "layers": 24, "heads": 16, **_PAPER},
    "1.4b": {"hidden_size": 2048, "layers": 24, "heads": 16, **_PAPER},
    "2.8b": {"hidden_size": 2560, "layers": 32, "heads": 20, **_PAPER},
    "6.8b": {"hidden_size": 4096, "layers": 32, "heads": 32, **_PAPER},
    "13.1b": {"hidden_size": 5120, "layers": 40, "heads": 40, **_PAPER},
}


def preset(name: str, attention: str = "diff_v2", **changes: Any) -> AntiphaseConfig:
    """Return the configuration of a preset, with a mechanism and any field changed."""
    if name not in PRESETS:
        raise ValueError(f"preset: got {name!r}, allowed are {', '.join(PRESETS)}")
    sizes = dict(PRESETS[name])
    sizes["num_hidden_layers"] = sizes.pop("layers")
    sizes["num_attention_heads"] = sizes.pop("heads")
    fields = {**sizes, "tie_word_embeddings": True, **changes}
    return AntiphaseConfig(attention=attention, **fields)
