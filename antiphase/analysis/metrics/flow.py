"""What the noise term does to the answer: knock it out or replace it, and see the logit change."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from antiphase.analysis.ground_truth import Truth
from antiphase.analysis.metrics.rank import truncated
from antiphase.attention import Attention
from antiphase.attention.heads import Heads
from antiphase.models import AntiphaseForCausalLM
from antiphase.ops import repeat_heads

Edit = Callable[[Tensor], Tensor]
"""From a noise map [B, h, T, T] to the one that takes its place."""


def knocked_out(noise: Tensor) -> Tensor:
    """Return no noise: lam = 0."""
    return torch.zeros_like(noise)


def of_rank(rank: int) -> Edit:
    """Return an edit to the nearest causal map whose factors have that rank."""
    return lambda noise: truncated(noise, rank).tril()


def running_mean(noise: Tensor) -> Tensor:
    """Return the map that looks everywhere alike."""
    even = torch.ones_like(noise).tril()
    return even / even.sum(-1, keepdim=True)


@contextlib.contextmanager
def edited(model: AntiphaseForCausalLM, edit: Edit, layer: int, head: int | None) -> Iterator[None]:
    """Let a layer (or one head of it) use another noise map; the rest of the model is as it was."""
    target = model.model.attention_layers[layer]

    def attend(heads: Heads, *, causal: bool, mask: Tensor | None, backend: str) -> Tensor:
        maps = target.maps(heads, causal=causal, mask=mask)
        if "noise" not in maps:
            raise ValueError(f"flow: {target.name} has one map a head, no noise term to change")
        A2 = edit(maps["noise"])
        if head is not None:
            only = torch.arange(A2.shape[1], device=A2.device) == head
            A2 = torch.where(only[None, :, None, None], A2, maps["noise"])
        A = maps["signal"] - maps["lam"] * A2
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
    truth: Truth,
    edit: Edit = knocked_out,
    layer: int = 0,
    head: int | None = None,
) -> Tensor:
    """Return how far the answer's logit falls with the edit, [B, n]; above 0, the noise helped.

    The logit is taken beside the mean of all, since a shift of all logits says nothing.
    """
    before = _answer_logits(model, ids, truth)
    with edited(model, edit, layer, head):
        after = _answer_logits(model, ids, truth)
    return before - after


def _answer_logits(model: Any, ids: Tensor, truth: Truth) -> Tensor:
    logits = model(input_ids=ids, use_cache=False).logits.double()
    rows = truth.rows[..., None].expand(-1, -1, logits.shape[-1])
    logits = logits.gather(1, rows)
    logits = logits - logits.mean(-1, keepdim=True)
    answers = ids.gather(1, truth.rows + 1)
    return logits.gather(2, answers[..., None])[..., 0]


def attention_times_gradient(model: AntiphaseForCausalLM, ids: Tensor, truth: Truth) -> Tensor:
    """Return the share of |A x dA| that lies on R, by layer: [layers, B].

    dA is the gradient of the answers' logits by the maps that meet V.
    """
    kept: list[Tensor] = []
    layers = model.model.attention_layers

    def attending(layer: Attention) -> Callable[..., Tensor]:
        def attend(heads: Heads, *, causal: bool, mask: Tensor | None, backend: str) -> Tensor:
            A = layer.maps(heads, causal=causal, mask=mask)["difference"]
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
    shares = []
    for A in kept:
        assert A.grad is not None
        flow = (A * A.grad).abs().sum(1)  # [B, T, T]
        rows = truth.rows[..., None].expand(-1, -1, flow.shape[-1])
        flow = flow.gather(1, rows)
        shares.append(((flow * truth.relevant).sum((1, 2)) / flow.sum((1, 2))).detach())
    return torch.stack(shares)
