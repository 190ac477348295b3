"""A pretrained model as a differential one: the same function at first, and every part alive.

Each query head becomes a pair of equal ones, lam is 0.5 everywhere (a projection of zeros), and
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
from antiphase.pretrained.structure import refuse_quantised

TOLERANCE = 1e-4  # of the largest logit, in fp32, on a probe of a few tokens
PROBE = 64


def to_differential(model: PreTrainedModel, mechanism: str = "diff_v2") -> AntiphaseForCausalLM:
    """Return an Antiphase model with the same logits, or name the part that it cannot express."""
    if mechanism != "diff_v2":
        raise ValueError(
            f"mechanism: got {mechanism!r}, only 'diff_v2' can start as the same function; "
            "V1's head norm changes what a layer gives"
        )
    refuse_quantised(model)
    if operators(model):
        raise ValueError(f"{type(model).__name__}: has DEX inside; fold(model) first")
    config = model.config
    _refuse_fields(model, config)
    if model.dtype == torch.bfloat16:
        guard_bf16()
    ours = AntiphaseForCausalLM(
        AntiphaseConfig(
            attention=mechanism,
            match="none",
            intermediate_size=config.intermediate_size,
            **{name: getattr(config, name) for name in SHARED_FIELDS if hasattr(config, name)},
        )
    ).to(model.device)
    theirs = model if model.dtype == torch.float32 else _in_fp32(model)
    state = _doubled(theirs.state_dict(), config.head_dim)
    own = ours.state_dict()
    for layer in range(config.num_hidden_layers):
        name = f"model.layers.{layer}.self_attn.lambda_proj.weight"
        state[name] = torch.zeros_like(own[name])
    _refuse_parts(model, set(state), set(own))
    ours.load_state_dict(state)
    _refuse_other_function(theirs, ours)
    ours.generation_config = copy.deepcopy(model.generation_config)
    return ours.to(model.dtype).train(model.training)


def _in_fp32(model: Any) -> Any:
    """Return the same weights in a fresh model, whose rotary frequencies were never rounded."""
    config = copy.deepcopy(model.config)
    config.dtype = torch.float32
    fresh = type(model)(config).to(model.device, torch.float32)
    fresh.load_state_dict(model.state_dict())
    return fresh


def _doubled(state: dict[str, Tensor], head_dim: int) -> dict[str, Tensor]:
    """Return each query head twice, neighbours, and W_O times two."""
    made = {}
    for name, t in state.items():
        if ".self_attn.q_proj." in name:
            t = t.unflatten(0, (-1, head_dim)).repeat_interleave(2, 0).flatten(0, 1)
        elif name.endswith(".self_attn.o_proj.weight"):
            t = 2 * t
        made[name] = t
    return made


def _refuse_fields(model: PreTrainedModel, config: Any) -> None:
    kind = type(model).__name__
    needed = ("intermediate_size", "head_dim", "rms_norm_eps", "num_hidden_layers")
    if lacking := [name for name in needed if getattr(config, name, None) is None]:
        raise ValueError(f"{kind}: its config has no {lacking[0]}; it is not of Llama's family")
    act = getattr(config, "hidden_act", None) or getattr(config, "hidden_activation", None)
    if act != "silu":
        raise ValueError(f"{kind}: hidden_act is {act!r}, ours is 'silu' (SwiGLU)")
    windows = [t for t in getattr(config, "layer_types", None) or [] if "sliding" in t]
    if windows or getattr(config, "sliding_window", None):
        raise ValueError(
            f"{kind}: has a sliding window of {getattr(config, 'sliding_window', None)} tokens; "
            "our attention has none (set config.sliding_window to None if texts stay shorter)"
        )


def _refuse_parts(model: PreTrainedModel, theirs: set[str], ours: set[str]) -> None:
    for odd, words in ((theirs - ours, "which ours has not"), (ours - theirs, "which ours needs")):
        if odd:
            part = sorted(odd)[0]
            has = "has" if odd <= theirs else "lacks"
            raise ValueError(f"{type(model).__name__}: {has} {part}, {words}")


@torch.no_grad()
def _refuse_other_function(theirs: PreTrainedModel, ours: AntiphaseForCausalLM) -> None:
    """Compare logits: what names and shapes do not tell (scales, norms, positions) shows here."""
    ids = torch.arange(PROBE, device=theirs.device)[None] % theirs.config.vocab_size
    training = theirs.training
    theirs.eval(), ours.eval()
    a = theirs(ids, use_cache=False).logits.float()
    b = ours(ids, use_cache=False).logits.float()
    theirs.train(training), ours.train(training)
    far = float((a - b).abs().max() / a.abs().max().clamp(min=1e-9))
    if not far <= TOLERANCE:
        raise ValueError(
            f"{type(theirs).__name__}: computes something that ours does not (the logits differ "
            f"by {far:.2g} of the largest, with the same weights)"
        )
