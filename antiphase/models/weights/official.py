"""The layout of the official DIFF V1 modules: adjacent pairs as ours, but interleaved RoPE.

Names of an attention module there: q_proj, k_proj, v_proj, out_proj, lambda_q1 .. lambda_k2 and
subln.weight, the gain of the head norm. RoPE rotates the channels (2i, 2i + 1) there and
(i, i + d/2) here, so rows of q and k are permuted.
"""

import re
from collections.abc import Mapping

from torch import Tensor

from antiphase.models.causal_lm import AntiphaseForCausalLM
from antiphase.models.config import AntiphaseConfig
from antiphase.models.weights.head_order import interleaved_to_halves

_NAMES = (
    {f"{side}_proj.weight": f"{side}_proj.weight" for side in "qkv"}
    | {"out_proj.weight": "o_proj.weight", "subln.weight": "norm.gain"}
    | {f"lambda_{vector}": f"lam.{vector}" for vector in ("q1", "k1", "q2", "k2")}
)
_ATTENTION = re.compile(r"^(?P<layer>.*layers\.\d+\.self_attn\.)(?P<name>.+)$")


def official_attention(state: Mapping[str, Tensor], head_dim: int) -> dict[str, Tensor]:
    """Return the state of one official attention module as the state of a `DiffV1`.

    Args:
        state: tensors by their official names.
        head_dim: d, the width of each map's queries and keys.

    Raises:
        ValueError: a name is not one of an official module.
    """
    ours = {}
    for name, t in state.items():
        if name not in _NAMES:
            raise ValueError(f"weights: {name!r} is not a name of an official attention module")
        rotated = name in ("q_proj.weight", "k_proj.weight")
        ours[_NAMES[name]] = interleaved_to_halves(t, head_dim) if rotated else t
    return ours


def from_official(state: Mapping[str, Tensor], config: AntiphaseConfig) -> AntiphaseForCausalLM:
    """Return a `diff_v1` model from a Llama-like state whose attention is the official one.

    Args:
        state: tensors by name; everything but attention has Llama's names
            (model.layers.0.mlp.gate_proj.weight and so on).
        config: of the `diff_v1` model; its heads are the baseline's, twice the official ones.

    Raises:
        ValueError: tensors are missing, unknown, or do not fit the configuration.
    """
    ours: dict[str, Tensor] = {}
    for name, t in state.items():
        found = _ATTENTION.match(name)
        if found is None:
            ours[name] = t
        else:
            converted = official_attention({found["name"]: t}, config.head_dim)
            ours |= {found["layer"] + inner: value for inner, value in converted.items()}
    model = AntiphaseForCausalLM(config)
    if config.tie_word_embeddings and "lm_head.weight" not in ours:
        ours["lm_head.weight"] = ours["model.embed_tokens.weight"]
    try:
        result = model.load_state_dict(ours, strict=False)
    except RuntimeError as error:
        raise ValueError(
            "weights: do not fit the configuration; its heads are the baseline's, twice the "
            f"official ones ({error})"
        ) from error
    if result.missing_keys or result.unexpected_keys:
        raise ValueError(
            f"weights: missing {result.missing_keys or 'none'}, unknown "
            f"{result.unexpected_keys or 'none'}; expected Llama's names, with official attention"
        )
    return model.to(next(iter(ours.values())).dtype)
