"""A pretrained model as a differential one: the same function at first, and every part trainable.

Each query head becomes a pair of equal heads, lam is 0.5 everywhere (a projection of zeros), and
W_O is doubled: (A - 0.5 A) V 2 W_O is the old layer. Queries and lam all have a gradient from the
first step.
"""

import copy
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from antiphase.cpu import guard_bf16
from antiphase.models import AntiphaseConfig, AntiphaseForCausalLM
from antiphase.models.weights.diffllama import SHARED_FIELDS
from antiphase.pretrained.dex import operators
from antiphase.pretrained.structure import attention_parts

SUPPORTED = (
    "supported are Llama, Mistral and others with the same layers (RMSNorm, RoPE, SwiGLU; biases "
    "in all four projections of attention or in none)"
)
TOLERANCE = 1e-4  # relative to the largest logit, in fp32, on a probe of a few tokens
PROBE = 64


def to_differential(model: PreTrainedModel, mechanism: str = "diff_v2") -> AntiphaseForCausalLM:
    """Convert a model of Llama's family to a differential one with the same logits.

    Args:
        model: a causal language model; not changed.
        mechanism: "diff_v2", the only one that can start as the same function.

    Returns:
        The differential model, in the same dtype and mode, on the same device.

    Raises:
        ValueError: the model has a part that a differential model cannot express; names it.
    """
    if mechanism != "diff_v2":
        raise ValueError(
            f"mechanism: got {mechanism!r}, only 'diff_v2' can start as the same function; "
            "V1's head norm changes the output of a layer"
        )
    if operators(model):
        raise ValueError(f"{type(model).__name__}: has DEX inside; fold(model) first")
    head_dim = attention_parts(model)[0].head_dim  # not every config has the field
    config = model.config
    _reject_fields(model, config)
    if model.dtype == torch.bfloat16:
        guard_bf16()
    ours = AntiphaseForCausalLM(
        AntiphaseConfig(
            attention=mechanism,
            match="none",
            intermediate_size=config.intermediate_size,
            **{
                **{name: getattr(config, name) for name in SHARED_FIELDS if hasattr(config, name)},
                "head_dim": head_dim,
            },
        )
    ).to(model.device)
    theirs = model if model.dtype == torch.float32 else _in_fp32(model)
    state = _doubled(theirs.state_dict(), head_dim)
    own = ours.state_dict()
    for layer in range(config.num_hidden_layers):
        name = f"model.layers.{layer}.self_attn.lambda_proj.weight"
        state[name] = torch.zeros_like(own[name])
    _reject_parts(model, set(state), set(own))
    ours.load_state_dict(state)
    _reject_other_function(theirs, ours)
    ours.generation_config = copy.deepcopy(model.generation_config)
    return ours.to(model.dtype).train(model.training)


def _in_fp32(model: Any) -> Any:
    """Return the same weights in a new model, whose rotary frequencies were never rounded."""
    config = copy.deepcopy(model.config)
    config.dtype = torch.float32
    fresh = type(model)(config).to(model.device, torch.float32)
    fresh.load_state_dict(model.state_dict())
    return fresh


def _doubled(state: dict[str, Tensor], head_dim: int) -> dict[str, Tensor]:
    """Return each query head twice, next to each other, and W_O times two."""
    doubled = {}
    for name, weight in state.items():
        if ".self_attn.q_proj." in name:
            heads = weight.unflatten(0, (-1, head_dim))
            weight = heads.repeat_interleave(2, 0).flatten(0, 1)
        elif name.endswith(".self_attn.o_proj.weight"):
            weight = 2 * weight
        doubled[name] = weight
    return doubled


def _reject_fields(model: PreTrainedModel, config: Any) -> None:
    kind = type(model).__name__
    needed = {"rms_norm_eps": "RMSNorm", "intermediate_size": "SwiGLU"}
    for name, part in needed.items():
        if getattr(config, name, None) is None:
            raise ValueError(f"{kind}: its config has no {name} ({part}); {SUPPORTED}")
    act = getattr(config, "hidden_act", None) or getattr(config, "hidden_activation", None)
    if act != "silu":
        raise ValueError(f"{kind}: its hidden_act is {act!r}, not 'silu' (SwiGLU); {SUPPORTED}")
    windows = [t for t in getattr(config, "layer_types", None) or [] if "sliding" in t]
    if windows or getattr(config, "sliding_window", None):
        raise ValueError(
            f"{kind}: has a sliding window of {getattr(config, 'sliding_window', None)} tokens; "
            "our attention has none (set config.sliding_window to None if sequences are shorter)"
        )


def _reject_parts(model: PreTrainedModel, theirs: set[str], ours: set[str]) -> None:
    kind = type(model).__name__
    if unknown := sorted(theirs - ours):
        raise ValueError(f"{kind}: has {unknown[0]}, which Llama has not; {SUPPORTED}")
    if lacking := sorted(ours - theirs):
        raise ValueError(f"{kind}: lacks {lacking[0]}, which Llama has; {SUPPORTED}")


@torch.no_grad()
def _reject_other_function(theirs: PreTrainedModel, ours: AntiphaseForCausalLM) -> None:
    """Compare logits: finds what names and shapes do not show (scales, norms, positions)."""
    ids = torch.arange(PROBE, device=theirs.device)[None] % theirs.config.vocab_size
    training = theirs.training
    theirs.eval(), ours.eval()
    expected = theirs(ids, use_cache=False).logits.float()
    found = ours(ids, use_cache=False).logits.float()
    theirs.train(training), ours.train(training)
    difference = float((expected - found).abs().max() / expected.abs().max().clamp(min=1e-9))
    if not difference <= TOLERANCE:
        raise ValueError(
            f"{type(theirs).__name__}: computes something that ours does not (the logits differ "
            f"by {difference:.2g} of the largest, with the same weights)"
        )
