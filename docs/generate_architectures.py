"""Write docs/architectures.md: which Hugging Face models each function of the package supports.

    python docs/generate_architectures.py

Nothing here is a list of promises. A tiny, randomly initialised model of every architecture is
built, every function is applied to it, and its result is compared with the original model. A test
(tests/docs/test_architectures.py) fails when the committed page differs from what this prints.
"""

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

import antiphase
from antiphase.analysis import capture

PAGE = Path(__file__).with_name("architectures.md")
TOLERANCE = 1e-4  # of the largest logit, fp32
COLUMNS = ("capture", "unchain", "to_differential", "accelerate")

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS = {"moe_intermediate_size": 48, "num_experts_per_tok": 2}
LATENT = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4,
    "v_head_dim": 8,
}
# Architecture: what its config has beside SIZES.
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Mistral": {"sliding_window": None},
    "Qwen2": {},
    "Qwen3": {"head_dim": 8},
    "SmolLM3": {"no_rope_layers": [1, 0]},  # its default leaves RoPE out in every fourth layer
    "Gemma": {"head_dim": 8},
    "Gemma2": {"head_dim": 8, "query_pre_attn_scalar": 8},
    "Gemma3": {"head_dim": 8, "query_pre_attn_scalar": 8},
    "Granite": {},
    "Olmo2": {},
    "Cohere": {},
    "StableLm": {},
    "Starcoder2": {"sliding_window": None},
    "Mixtral": {"num_local_experts": 2, "num_experts_per_tok": 2},
    "Qwen3Moe": {"head_dim": 8, "num_experts": 4, **EXPERTS},
    "GptOss": {"head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2},
    "DeepseekV3": {"num_key_value_heads": 4, "n_routed_experts": 8, **EXPERTS, **LATENT},
    "Phi": {},
    "Phi3": {},
    "OPT": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "GPT2": {"n_embd": 32, "n_layer": 2, "n_head": 4},
    "GPTNeoX": {},
    "Falcon": {},
    "Bloom": {},
    "DiffLlama": {},
}


def class_name(architecture: str) -> str:
    """Return the name of the causal language model's class in transformers."""
    return "GPT2LMHeadModel" if architecture == "GPT2" else f"{architecture}ForCausalLM"


def tiny(architecture: str) -> Any:
    """Return a tiny model of that architecture, with random weights and nothing on a hub."""
    config_name = "Gemma3TextConfig" if architecture == "Gemma3" else f"{architecture}Config"
    config = getattr(transformers, config_name)(**SIZES | ARCHITECTURES[architecture])
    torch.manual_seed(0)
    model = getattr(transformers, class_name(architecture))(config).eval()
    with torch.no_grad():  # N(0, 0.02) makes near-uniform attention, where mistakes do not show
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.normal_(std=0.2)
    return model


def ids() -> torch.Tensor:
    """Return the token ids that every check runs on, [2, 24]."""
    return torch.randint(3, 64, (2, 24), generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    """Return the logits of the token ids above."""
    return model(input_ids=ids(), use_cache=False).logits


def require_close(got: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    """Raise unless both are equal within the tolerance, relative to the largest entry."""
    error = float((got - expected).abs().max() / expected.abs().max())
    if not error <= TOLERANCE:
        raise ValueError(f"{what} differ by {error:.2g} of the largest")


def check_capture(model: Any) -> None:
    """Compare the captured attention maps with the ones that eager attention returns."""
    layers = capture(model, ids(), torch.arange(24)[None].expand(2, -1)).layers
    # DiffLlama returns its signal maps, then its noise maps, not their difference.
    maps = [
        layer.difference if layer.noise is None else torch.cat([layer.signal, layer.noise], dim=1)
        for layer in layers
    ]
    eager = copy.deepcopy(model)
    eager.set_attn_implementation("eager")
    with torch.no_grad():
        expected = eager(input_ids=ids(), use_cache=False, output_attentions=True).attentions
    for got, weights in zip(maps, expected, strict=True):
        require_close(got, weights, "captured maps and eager attention weights")


def check_unchain(model: Any) -> None:
    """Attach DEX (nothing changes), change it by hand, fold it, and compare the logits."""
    before = logits(model)
    config = antiphase.DexConfig(heads="all", anneal=2)
    adapted = antiphase.unchain(model, config, calibration=ids())
    require_close(logits(adapted), before, "logits with the new adapter")
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if name.endswith((".W_D", ".lam.learn")):
                parameter.add_(0.1)
    adapted.step = 2
    expected = logits(adapted)
    require_close(logits(antiphase.fold(adapted)), expected, "logits after folding")


def check_to_differential(model: Any) -> None:
    """Convert to DIFF V2 and compare the logits."""
    require_close(logits(antiphase.to_differential(model)), logits(model), "logits")


def check_accelerate(model: Any) -> None:
    """Replace the attention by the fused op and compare the logits."""
    before = logits(model)
    antiphase.accelerate(model)
    require_close(logits(model), before, "logits")


CHECKS: dict[str, Callable[[Any], None]] = {
    "capture": check_capture,
    "unchain": check_unchain,
    "to_differential": check_to_differential,
    "accelerate": check_accelerate,
}


def supported(architecture: str, column: str) -> str:
    """Return "" if the function supports the architecture, else its error message."""
    try:
        CHECKS[column](tiny(architecture))
    except (ValueError, TypeError, AttributeError, RuntimeError) as error:
        return " ".join(str(error).split()) or type(error).__name__
    return ""


def page() -> str:
    """Return the page."""
    found = {a: {c: supported(a, c) for c in COLUMNS} for a in ARCHITECTURES}
    why = REASONS.format(version=transformers.__version__)
    return HEAD + table(found) + why + reasons(found)


def table(found: dict[str, dict[str, str]]) -> str:
    """Return the table: one row per architecture."""
    lines = [f"| architecture | {' | '.join(COLUMNS)} |", "|---|" + ":---:|" * len(COLUMNS)]
    for architecture, row in found.items():
        cells = " | ".join("" if row[c] else "✔" for c in COLUMNS)
        lines.append(f"| `{class_name(architecture)}` | {cells} |")
    return "\n".join(lines) + "\n"


def reasons(found: dict[str, dict[str, str]]) -> str:
    """Return why a function rejects an architecture: its error message, grouped by function."""
    parts = []
    for column in COLUMNS[:3]:  # accelerate has one reason for all
        lines = [f"- `{a}`: {row[column]}" for a, row in found.items() if row[column]]
        parts.append(f"\n### {column}\n\n" + "\n".join(lines or ["None."]) + "\n")
    return "".join(parts)


HEAD = """# Supported architectures

Generated by `python docs/generate_architectures.py`; do not edit. For every row a tiny model with
random weights is built, the function is applied, and its result is compared with the original model
(logits or attention maps within 1e-4 of the largest entry, fp32). ✔ is a comparison that passed; an
empty cell is an error that says why, listed below.

- **capture**: `antiphase.analysis.capture` and `antiphase analyze` read the attention maps of
  chosen rows. Checked against the weights that the model's eager attention returns (for
  `DiffLlama`: A1 and A2).
- **unchain**: `antiphase.unchain` attaches DEX and `antiphase.fold` folds it into W_O.
- **to_differential**: `antiphase.to_differential` makes a DIFF V2 model with the same logits.
- **accelerate**: `antiphase.accelerate` replaces a differential attention by the fused op. It is
  for models that are differential already: transformers' `DiffLlama`, and timm's `DiffAttention`,
  which is no language model and has no row here.

Mistral and StarCoder2 are built with `sliding_window=None`. Antiphase's own models support
`capture` and need none of the other functions.

"""

REASONS = """
## Why an architecture is rejected

The error message of each function (transformers {version}).
"""


def main() -> None:
    """Write the page."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
