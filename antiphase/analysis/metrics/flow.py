"""Information flow: the change of the answer's logit when a noise map is removed or replaced."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from antiphase.analysis.ground_truth import GroundTruth
from antiphase.analysis.metrics.rank import truncated
from antiphase.attention import Attention
from antiphase.attention.heads import Heads
from antiphase.attention.masking import Masking
from antiphase.models import AntiphaseForCausalLM
from antiphase.ops import repeat_heads

Edit = Callable[[Tensor], Tensor]
"""From a noise map A2 [B, h, T, T] to its replacement."""


def knocked_out(noise: Tensor) -> Tensor:
    """Return no noise, as with lam = 0."""
    return torch.zeros_like(noise)


def of_rank(rank: int) -> Edit:
    """Return an edit that truncates the noise map to that rank and masks the future again."""
    return lambda noise: truncated(noise, rank).tril()


def running_mean(noise: Tensor) -> Tensor:
    """Return the uniform causal map."""
    uniform = torch.ones_like(noise).tril()
    return uniform / uniform.sum(-1, keepdim=True)


@contextlib.contextmanager
def edited(
    model: AntiphaseForCausalLM, edit: Edit, layer: int, head: int | Tensor | None
) -> Iterator[None]:
    """Replace the noise map of a layer, or of some of its heads, while the context is open.

    Args:
        model: one of our models, with two maps per head in that layer.
        edit: from the layer's noise map to its replacement.
        layer: index of the layer.
        head: index of the head, or a boolean mask of heads [h]; None for all heads of the layer.

    Raises:
        ValueError: the layer has no noise map (during the forward pass).
    """
    target = model.model.attention_layers[layer]

    def attend(heads: Heads, masking: Masking, backend: str) -> Tensor:
        maps = target.maps(heads, masking)
        if "noise" not in maps:
            raise ValueError(f"flow: {target.name} has one map per head, no noise map to replace")
        A2 = edit(maps["noise"])
        if head is not None:
            chosen = torch.arange(A2.shape[1]) == head if isinstance(head, int) else head
            chosen = chosen.to(A2.device)
            A2 = torch.where(chosen[None, :, None, None], A2, maps["noise"])
        A = target.applied_map({**maps, "noise": A2})
        v = repeat_heads(heads.v, A.shape[1])
        return (A @ v.to(A.dtype)).to(heads.v.dtype)

    target.attend = attend  # type: ignore[method-assign]
    try:
        yield
    finally:
        del target.attend


@torch.no_grad()
def logit_change(
    model: AntiphaseForCausalLM,
    ids: Tensor,
    truth: GroundTruth,
    edit: Edit = knocked_out,
    layer: int = 0,
    head: int | Tensor | None = None,
) -> Tensor:
    """Return how far the answer's logit falls with an edit; above 0, the noise map helped.

    Logits are centred on their mean over the vocabulary, since a shift of all changes nothing.

    Args:
        model: one of our models.
        ids: token ids, [B, T].
        truth: the rows that predict answers.
        edit: replacement of the noise map; default: knockout.
        layer: index of the layer.
        head: index of the head, or a boolean mask of heads [h]; None for all heads of the layer.

    Returns:
        Logit before minus logit after, per answer, [B, n].
    """
    before = _answer_logits(model, ids, truth)
    with edited(model, edit, layer, head):
        after = _answer_logits(model, ids, truth)
    return before - after


def _answer_logits(model: Any, ids: Tensor, truth: GroundTruth) -> Tensor:
    """Return the centred logits of the answers, [B, n]."""
    logits = model(input_ids=ids, use_cache=False).logits.double()
    rows = truth.rows[..., None].expand(-1, -1, logits.shape[-1])
    logits = logits.gather(1, rows)
    logits = logits - logits.mean(-1, keepdim=True)
    answers = ids.gather(1, truth.rows + 1)
    return logits.gather(2, answers[..., None])[..., 0]


def attention_times_gradient(
    model: AntiphaseForCausalLM, ids: Tensor, truth: GroundTruth
) -> Tensor:
    """Return the fraction of |A x dA| that lies on R, per layer: [layers, B].

    dA is the gradient of the answers' logits with respect to the maps that are applied to V.

    Args:
        model: one of our models.
        ids: token ids, [B, T].
        truth: the rows that predict answers, and R.
    """
    kept: list[Tensor] = []
    layers = model.model.attention_layers

    def attending(layer: Attention) -> Callable[..., Tensor]:
        def attend(heads: Heads, masking: Masking, backend: str) -> Tensor:
            A = layer.maps(heads, masking)["difference"]
            A = A.detach().requires_grad_() if not A.requires_grad else A
            A.retain_grad()
            kept.append(A)
            return (A @ repeat_heads(heads.v, A.shape[1]).to(A.dtype)).to(heads.v.dtype)

        return attend

    for layer in layers:
        layer.attend = attending(layer)  # type: ignore[method-assign]
    try:
        _answer_logits(model, ids, truth).sum().backward()
    finally:
        for layer in layers:
            del layer.attend
        model.zero_grad()
    fractions = []
    for A in kept:
        assert A.grad is not None
        flow = (A * A.grad).abs().sum(1)  # [B, T, T]
        rows = truth.rows[..., None].expand(-1, -1, flow.shape[-1])
        flow = flow.gather(1, rows)
        fractions.append(((flow * truth.relevant).sum((1, 2)) / flow.sum((1, 2))).detach())
    return torch.stack(fractions)
