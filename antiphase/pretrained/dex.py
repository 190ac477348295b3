"""DEX: a differential operation on a pretrained head's output, before W_O (arXiv 2505.16333).

O' = O - lam(t) f_D(O) for the selected heads, with one matrix W_D per layer; there is no second
attention map. lam(t) starts at 0, so the model starts as the base model, and W_O can absorb the
operation after training.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel, TrainerCallback

from antiphase.attention.parts import Float32Parameters, depth_init
from antiphase.cpu import guard_bf16
from antiphase.pretrained.dex_config import DexConfig
from antiphase.pretrained.head_selection import head_entropy, head_importance, top_heads
from antiphase.pretrained.structure import AttentionPart, attention_parts, train_only


class DexLambda(Float32Parameters):
    """lam(t) = (1 - r) r lam_init + r lam_learn with r = min(1, t / T'); t counts optimiser steps.

    `selected` [h, 1] is 1 for a head that is changed, else 0. With the form "held", lam_learn is
    lam_init and is not trained; with "one", lam is 1 at every step.
    """

    step: Tensor
    selected: Tensor
    offset: Tensor  # [h, 1]: -(1 - r) r lam_init for a selected head
    slope: Tensor  # [h, 1]: -r for a selected head

    def __init__(
        self, lam_init: float, anneal: int, selected: Tensor, form: str = "learned"
    ) -> None:
        super().__init__()
        self.lam_init, self.anneal, self.form = lam_init, anneal, form
        self.learn = nn.Parameter(torch.empty(()), requires_grad=form == "learned")
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))
        self.register_buffer("selected", selected)
        for name in ("offset", "slope"):
            self.register_buffer(name, torch.zeros_like(selected))
        self.init_parameters()
        self.set_step(0)

    def init_parameters(self) -> None:
        start = {"learned": 0.0, "held": self.lam_init, "one": 1.0}[self.form]
        nn.init.constant_(self.learn, start)

    def set_step(self, step: int) -> None:
        """Set t; what depends on it is computed here, once per step and not in every forward."""
        self.step.fill_(step)
        ramp = self._ramp()
        self.offset.copy_(-self.selected * ((1 - ramp) * ramp * self.lam_init))
        self.slope.copy_(-self.selected * ramp)

    def value(self) -> Tensor:
        """Return lam at the current step."""
        ramp = self._ramp()
        return (1 - ramp) * ramp * self.lam_init + ramp * self.learn

    def _ramp(self) -> float:
        return 1.0 if self.form == "one" else min(1.0, int(self.step) / self.anneal)

    def weights(self) -> Tensor:
        """Return -lam for a selected head and 0 for another, [h, 1]."""
        return torch.addcmul(self.offset, self.slope, self.learn)


class DexOutput(nn.Module):
    """W_O with the operation in front of it."""

    def __init__(
        self, base_layer: nn.Linear, part: AttentionPart, heads: list[int], config: DexConfig
    ) -> None:
        super().__init__()
        self.base_layer = base_layer
        self.heads, self.head_dim = part.heads, part.head_dim
        W_O = base_layer.weight
        self.W_D = nn.Parameter(W_O.new_empty(part.head_dim, part.head_dim))
        # with lam = 1 throughout, only W_D = 0 leaves the base model unchanged at step 0
        zero = config.zero_start or config.lam == "one"
        nn.init.normal_(self.W_D, std=0.0 if zero else 0.02)
        init = depth_init(part.layer) if config.lam_init == "depth" else config.lam_init
        selected = torch.zeros(part.heads, 1)
        selected[heads] = 1.0
        self.lam = DexLambda(init, config.anneal, selected, config.lam).to(W_O.device)
        self.config = config

    def forward(self, o: Tensor) -> Tensor:
        """Return W_O O' for the heads' outputs o [..., h * dv]."""
        heads = o.unflatten(-1, (self.heads, self.head_dim))
        weights = self.lam.weights().to(o.dtype)
        changed = torch.addcmul(heads, weights, F.linear(heads, self.W_D))
        return self.base_layer(changed.flatten(-2))

    @torch.no_grad()
    def relative_size(self, o: Tensor) -> float:
        """Return ||lam W_D O|| / ||O|| over the selected heads of o [..., h * dv], or 0."""
        selected = self.lam.selected[:, 0].bool()
        heads = o.unflatten(-1, (self.heads, self.head_dim))[..., selected, :].float()
        change = self.lam.weights()[selected] * F.linear(heads, self.W_D.float())
        size = float(heads.norm())
        return float(change.norm()) / size if size else 0.0

    @torch.no_grad()
    def folded(self) -> nn.Linear:
        """Return W_O with the operation inside: W_h (I - lam W_D) per head, computed in fp64."""
        W_O, W_D = self.base_layer.weight, self.W_D.cpu().double()
        heads = W_O.cpu().double().unflatten(1, (self.heads, self.head_dim))  # [D, h, dv]
        weights = self.lam.weights().cpu().double()
        W_O.copy_((heads + weights * (heads @ W_D)).flatten(1))
        return self.base_layer


class StepCounter(TrainerCallback):
    """Drive lam(t) of every DEX operation with the Trainer's optimiser steps."""

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        """Set t to the number of steps done so far; more than 0 when a run is resumed."""
        set_step(model, state.global_step)

    def on_step_end(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        """Set t after a step, before anything is evaluated."""
        set_step(model, state.global_step)


def select_heads(
    model: PreTrainedModel,
    parts: list[AttentionPart],
    config: DexConfig,
    calibration: Tensor | None,
) -> list[list[int]]:
    """Return the indices of the heads to change, per layer."""
    if config.heads == "all":
        return [list(range(part.heads)) for part in parts]
    if not isinstance(config.heads, str):
        return _validated(config.heads, parts)
    if config.heads == "random":
        # its own generator: W_D starts the same whatever heads are chosen
        generator = torch.Generator().manual_seed(torch.initial_seed())
        scores = [torch.rand(part.heads, generator=generator) for part in parts]
        return top_heads(scores, config.fraction)
    if calibration is None:
        raise ValueError(
            f"heads={config.heads!r} needs calibration sequences, token ids [n, T]; or use 'all'"
        )
    if not isinstance(calibration, Tensor) or calibration.dim() != 2 or not calibration.numel():
        tensor = isinstance(calibration, Tensor)
        shape = tuple(calibration.shape) if tensor else type(calibration).__name__
        raise ValueError(f"calibration: got {shape}, expected token ids [n, T]")
    if config.heads in ("entropy", "lowest-entropy"):
        sign = 1 if config.heads == "entropy" else -1
        scores = [sign * entropy for entropy in head_entropy(model, calibration)]
        return _validated(top_heads(scores, config.fraction), parts)
    importance = head_importance(model, parts, calibration)
    return top_heads([-score for score in importance], config.fraction)


def _validated(heads: list[list[int]], parts: list[AttentionPart]) -> list[list[int]]:
    if len(heads) != len(parts):
        raise ValueError(f"heads: got lists for {len(heads)} layers, the model has {len(parts)}")
    for layer, (chosen, part) in enumerate(zip(heads, parts, strict=True)):
        if wrong := [h for h in chosen if not 0 <= h < part.heads]:
            raise ValueError(f"heads: layer {layer} has heads 0 to {part.heads - 1}, not {wrong}")
    return [sorted(set(chosen)) for chosen in heads]


def attach(
    model: PreTrainedModel, config: DexConfig, calibration: Tensor | None = None
) -> list[list[int]]:
    """Put the operation before every W_O, in place; return the heads it acts on."""
    parts = attention_parts(model)
    if model.dtype == torch.bfloat16:
        guard_bf16()
    heads = select_heads(model, parts, config, calibration)
    train_only(model, parts, config.trained_projections)
    for part, chosen in zip(parts, heads, strict=True):
        part.module.o_proj = DexOutput(part.module.o_proj, part, chosen, config)
    model.save_pretrained = _reject_saving
    return heads


def _reject_saving(*_: Any, **__: Any) -> None:
    raise ValueError(
        "this model has DEX inside, which its class cannot load again: save the adapter "
        "(UnchainedModel.save_pretrained), or fold(model) and save that; while training, "
        "antiphase.training.AdapterTrainer saves what is trained"
    )


def operators(model: nn.Module) -> dict[str, DexOutput]:
    """Return the DEX operations in a model, by module name."""
    return {name: m for name, m in model.named_modules() if isinstance(m, DexOutput)}


def learning_rate_factors(model: nn.Module) -> dict[nn.Parameter, float]:
    """Return the trained parameters whose learning rate is a multiple of the others', with it."""
    every = [
        (parameter, factor)
        for operator in operators(model).values()
        for parameter, factor in (
            (operator.lam.learn, operator.config.lam_lr_factor),
            (operator.W_D, operator.config.operation_lr_factor),
        )
    ]
    return {
        parameter: factor for parameter, factor in every if factor != 1 and parameter.requires_grad
    }


def set_step(model: nn.Module, step: int) -> None:
    """Set the number of optimiser steps done, for lam(t) of every operation."""
    for operator in operators(model).values():
        operator.lam.set_step(step)


def detach(model: nn.Module) -> None:
    """Fold every operation into its W_O at the current lam; make all parameters trainable."""
    for name, operator in operators(model).items():
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, operator.folded())
    del model.save_pretrained
    for p in model.parameters():
        p.requires_grad_(p.is_floating_point())
