"""DEX: a differential operation on a pretrained head's output, before W_O (arXiv 2505.16333).

O' = O - lam(t) f_D(O) for the selected heads, with one matrix W_D a layer; no second map. lam(t)
starts at 0, so the model starts as what it was, and W_O can swallow the operation at the end.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal, get_type_hints

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from antiphase.attention.parts import Float32Parameters, depth_init
from antiphase.cpu import guard_bf16
from antiphase.options import fitted
from antiphase.pretrained.head_selection import head_entropy, head_importance, most
from antiphase.pretrained.structure import AttentionPart, attention_parts, train_only

SELECTIONS = ("entropy", "importance", "all")


@dataclass(frozen=True)
class DexConfig:
    """Which heads, how lam grows, what is trained.

    `heads`: "entropy" (per layer the `share` that looks most widely on a calibration text),
    "importance" (the `share` that matters least there), "all", or a list of heads for each layer.
    `anneal`: the steps T' over which lam is handed from `lam_init` to the learned one. `lam_init`:
    "depth" as in V1, or a number. `sign`: "-", or "+" as a control. `train`: "kvo" to train W_K,
    W_V and W_O with the operator, or "adapter" for the operator alone.
    """

    heads: str | list[list[int]] = "entropy"
    share: float = 0.5
    anneal: int = 100
    lam_init: Literal["depth"] | float = "depth"
    sign: Literal["-", "+"] = "-"
    train: Literal["kvo", "adapter"] = "kvo"

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(DexConfig).items():
            object.__setattr__(self, name, fitted(name, getattr(self, name), hint))
        if isinstance(self.heads, str) and self.heads not in SELECTIONS:
            raise ValueError(
                f"heads: got {self.heads!r}, allowed are {', '.join(SELECTIONS)}, or a list of "
                "heads for each layer"
            )
        if not 0 < self.share <= 1:
            raise ValueError(f"share: got {self.share}, expected more than 0 and at most 1")
        if self.anneal < 1:
            raise ValueError(
                f"anneal: got {self.anneal}, expected at least 1 step; without it lam and W_D "
                "would never move"
            )
        if self.lam_init != "depth" and not math.isfinite(self.lam_init):
            raise ValueError(f"lam_init: got {self.lam_init}, expected 'depth' or a number")


class DexLambda(Float32Parameters):
    """lam(t) = (1 - a) a lam_init + a lam_learn, a = min(1, t / T'); t counts optimiser steps.

    `signs` [h, 1] is 0 for a head that is left alone, else the sign of its change.
    """

    step: Tensor
    signs: Tensor
    start: Tensor  # [h, 1]: sign x (1 - a) a lam_init
    slope: Tensor  # [h, 1]: sign x a

    def __init__(self, lam_init: float, anneal: int, signs: Tensor) -> None:
        super().__init__()
        self.lam_init, self.anneal = lam_init, anneal
        self.learn = nn.Parameter(torch.zeros(()))
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))
        for name, t in (("signs", signs), ("start", signs * 0), ("slope", signs * 0)):
            self.register_buffer(name, t.clone())

    def at(self, step: int) -> None:
        """Set the time; what follows from it is computed once, not in every pass."""
        a = min(1.0, step / self.anneal)
        self.step.fill_(step)
        self.start.copy_(self.signs * ((1 - a) * a * self.lam_init))
        self.slope.copy_(self.signs * a)

    def now(self) -> Tensor:
        """Return lam at this step."""
        a = (self.step / self.anneal).clamp(max=1.0)
        return (1 - a) * a * self.lam_init + a * self.learn

    def weights(self) -> Tensor:
        """Return the sign times lam of each head, [h, 1]."""
        return torch.addcmul(self.start, self.slope, self.learn)


class DexOutput(nn.Module):
    """W_O with the operation in front of it."""

    def __init__(
        self, base_layer: nn.Linear, part: AttentionPart, heads: list[int], config: DexConfig
    ) -> None:
        super().__init__()
        self.base_layer = base_layer
        self.heads, self.head_dim = part.heads, part.head_dim
        like = base_layer.weight
        self.W_D = nn.Parameter(like.new_empty(part.head_dim, part.head_dim))
        nn.init.normal_(self.W_D, std=0.02)
        init = depth_init(part.layer) if config.lam_init == "depth" else config.lam_init
        signs = torch.zeros(part.heads, 1)
        signs[heads] = -1.0 if config.sign == "-" else 1.0
        self.lam = DexLambda(init, config.anneal, signs).to(like.device)

    def forward(self, o: Tensor) -> Tensor:
        """Return what W_O makes of O' for outputs o [..., h * dv]."""
        heads = o.unflatten(-1, (self.heads, self.head_dim))
        weights = self.lam.weights().to(o.dtype)
        changed = torch.addcmul(heads, weights, F.linear(heads, self.W_D))
        return self.base_layer(changed.flatten(-2))

    @torch.no_grad()
    def folded(self) -> nn.Linear:
        """Return W_O with the operation inside: W_h (I - lam W_D), computed in fp64."""
        W, W_D = self.base_layer.weight, self.W_D.cpu().double()
        heads = W.cpu().double().unflatten(1, (self.heads, self.head_dim))  # [D, h, dv]
        weights = self.lam.weights().cpu().double()
        W.copy_((heads + weights * (heads @ W_D)).flatten(1))
        return self.base_layer


def choose_heads(
    model: PreTrainedModel, parts: list[AttentionPart], config: DexConfig, texts: Tensor | None
) -> list[list[int]]:
    """Return the heads to change, for each layer."""
    if config.heads == "all":
        return [list(range(part.heads)) for part in parts]
    if not isinstance(config.heads, str):
        return _given(config.heads, parts)
    if texts is None:
        raise ValueError(
            f"heads={config.heads!r} needs calibration texts, [n, T] token ids; or use 'all'"
        )
    if not isinstance(texts, Tensor) or texts.dim() != 2 or not texts.numel():
        shape = tuple(texts.shape) if isinstance(texts, Tensor) else type(texts).__name__
        raise ValueError(f"calibration: got {shape}, expected token ids [n, T]")
    if config.heads == "entropy":
        return _given(most(head_entropy(model, texts), config.share), parts)
    return most([-score for score in head_importance(model, parts, texts)], config.share)


def _given(heads: list[list[int]], parts: list[AttentionPart]) -> list[list[int]]:
    if len(heads) != len(parts):
        raise ValueError(f"heads: got lists for {len(heads)} layers, the model has {len(parts)}")
    for layer, (chosen, part) in enumerate(zip(heads, parts, strict=True)):
        if wrong := [h for h in chosen if not 0 <= h < part.heads]:
            raise ValueError(f"heads: layer {layer} has heads 0 to {part.heads - 1}, not {wrong}")
    return [sorted(set(chosen)) for chosen in heads]


def attach(
    model: PreTrainedModel, config: DexConfig, texts: Tensor | None = None
) -> list[list[int]]:
    """Put the operation before every W_O, in place; return the heads it acts on."""
    parts = attention_parts(model)
    if model.dtype == torch.bfloat16:
        guard_bf16()
    heads = choose_heads(model, parts, config, texts)
    train_only(model, parts, ("k_proj", "v_proj", "o_proj") if config.train == "kvo" else ())
    for part, chosen in zip(parts, heads, strict=True):
        part.module.o_proj = DexOutput(part.module.o_proj, part, chosen, config)
    model.save_pretrained = _refuse_saving
    return heads


def _refuse_saving(*_: Any, **__: Any) -> None:
    raise ValueError(
        "this model has DEX inside, which its class cannot load again: save the adapter "
        "(UnchainedModel.save_pretrained), or fold(model) and save that; while training, "
        "antiphase.training.SmallPartTrainer saves what is trained"
    )


def operators(model: nn.Module) -> dict[str, DexOutput]:
    """Return the operations in a model, by where they are."""
    return {name: m for name, m in model.named_modules() if isinstance(m, DexOutput)}


def set_step(model: nn.Module, step: int) -> None:
    """Say how many optimiser steps have been made."""
    for operator in operators(model).values():
        operator.lam.at(step)


def detach(model: nn.Module) -> None:
    """Put every operation into its W_O, with the lam of the moment; all can be trained again."""
    for name, operator in operators(model).items():
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, operator.folded())
    del model.save_pretrained
    for p in model.parameters():
        p.requires_grad_(p.is_floating_point())
