"""Which heads of a pretrained model to change: those that look everywhere, or matter least."""

import torch
from torch import Tensor
from transformers import PreTrainedModel

from antiphase.models.attention_hooks import AttentionCall, attention_hook
from antiphase.pretrained.structure import AttentionPart

ROWS = 64  # of a map that are held at once


@torch.no_grad()
def head_entropy(model: PreTrainedModel, texts: Tensor) -> list[Tensor]:
    """Return each head's attention entropy in nats, the mean over all rows of texts [n, T].

    Streamed: a few rows of one text's maps at a time.
    """
    totals: list[Tensor] = []
    training = model.training
    model.eval()
    try:
        for text in texts.to(model.device).split(1):
            layers: list[Tensor] = []
            with attention_hook(model, lambda call, kept=layers: kept.append(_entropy(call))):  # type: ignore[misc]
                model(input_ids=text, use_cache=False)
            totals = [a + b for a, b in zip(totals, layers, strict=True)] if totals else layers
    finally:
        model.train(training)
    if not totals:
        raise ValueError(
            f"{type(model).__name__}: does not go through transformers' attention interface, so "
            "its heads' entropy cannot be seen; give the heads"
        )
    return [total / len(texts) for total in totals]


def _entropy(call: AttentionCall) -> Tensor:
    """Return the mean entropy of a layer's rows, [h], for one text."""
    T = call.q.shape[2]
    total = torch.zeros(call.q.shape[1], dtype=torch.float64)
    for rows in torch.arange(T, device=call.q.device).split(ROWS):
        rows_entropy = torch.special.entr(call.maps(rows[None])).sum((0, 2, 3))
        total += rows_entropy.double().cpu()
    return total / T


def head_importance(
    model: PreTrainedModel, parts: list[AttentionPart], texts: Tensor
) -> list[Tensor]:
    """Return how steeply the loss changes as each head's output is scaled, [h] by layer.

    The absolute slope on a text, the mean over texts.
    """
    gates = [torch.ones(part.heads, 1, device=model.device, requires_grad=True) for part in parts]
    totals = [torch.zeros(part.heads, dtype=torch.float64) for part in parts]

    def scaled(gate: Tensor, args: tuple[Tensor, ...]) -> Tensor:
        return (args[0].unflatten(-1, (len(gate), -1)) * gate.to(args[0].dtype)).flatten(-2)

    hooks = [
        part.module.o_proj.register_forward_pre_hook(lambda m, args, gate=gate: scaled(gate, args))
        for part, gate in zip(parts, gates, strict=True)
    ]
    training = model.training
    model.eval()
    try:
        for text in texts.to(model.device).split(1):
            loss = model(input_ids=text, labels=text, use_cache=False).loss
            slopes = torch.autograd.grad(loss, gates)
            totals = [t + s[:, 0].abs().double().cpu() for t, s in zip(totals, slopes, strict=True)]
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    return [total / len(texts) for total in totals]


def most(scores: list[Tensor], share: float) -> list[list[int]]:
    """Return that share of each layer's heads with the highest scores; of equal ones, the first."""
    chosen = []
    for score in scores:
        order = torch.sort(score, descending=True, stable=True).indices
        chosen.append(sorted(order[: max(1, round(share * len(score)))].tolist()))
    return chosen
