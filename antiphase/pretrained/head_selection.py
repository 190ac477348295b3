"""Scores for selecting heads of a pretrained model: attention entropy, and effect on the loss."""

import torch
from torch import Tensor
from transformers import PreTrainedModel

from antiphase.models.attention_hooks import AttentionCall, attention_hook
from antiphase.pretrained.structure import AttentionPart

ROWS = 64  # of an attention map that are held in memory at once


@torch.no_grad()
def head_entropy(model: PreTrainedModel, sequences: Tensor) -> list[Tensor]:
    """Return the attention entropy per head.

    Streamed through the model's own attention: a few rows of one sequence's maps at a time.

    Args:
        model: a model that calls transformers' attention interface.
        sequences: token ids [n, T].

    Returns:
        One tensor [h] per layer: the mean over all rows and sequences, in nats.

    Raises:
        ValueError: the model does not call transformers' attention interface.
    """
    totals: list[Tensor] = []
    training = model.training
    model.eval()
    try:
        for sequence in sequences.to(model.device).split(1):
            layers: list[Tensor] = []
            with attention_hook(model, lambda call, kept=layers: kept.append(_entropy(call))):  # type: ignore[misc]
                model(input_ids=sequence, use_cache=False)
            totals = [a + b for a, b in zip(totals, layers, strict=True)] if totals else layers
    finally:
        model.train(training)
    if not totals:
        raise ValueError(
            f"{type(model).__name__}: does not call transformers' attention interface, so the "
            "entropy of its heads cannot be measured; list the heads"
        )
    return [total / len(sequences) for total in totals]


def _entropy(call: AttentionCall) -> Tensor:
    """Return the mean entropy of a layer's rows, [h], for one sequence."""
    T = call.q.shape[2]
    total = torch.zeros(call.q.shape[1], dtype=torch.float64)
    for rows in torch.arange(T, device=call.q.device).split(ROWS):
        rows_entropy = torch.special.entr(call.maps(rows[None])).sum((0, 2, 3))
        total += rows_entropy.double().cpu()
    return total / T


def head_importance(
    model: PreTrainedModel, parts: list[AttentionPart], sequences: Tensor
) -> list[Tensor]:
    """Return how strongly the loss depends on the scale of each head's output.

    Args:
        model: a causal language model.
        parts: its attention, per layer.
        sequences: token ids [n, T].

    Returns:
        One tensor [h] per layer: |d loss / d scale|, the mean over sequences.
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
        for sequence in sequences.to(model.device).split(1):
            loss = model(input_ids=sequence, labels=sequence, use_cache=False).loss
            slopes = torch.autograd.grad(loss, gates)
            for total, slope in zip(totals, slopes, strict=True):
                total += slope[:, 0].abs().double().cpu()
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    return [total / len(sequences) for total in totals]


def top_heads(scores: list[Tensor], fraction: float) -> list[list[int]]:
    """Return that fraction of each layer's heads with the highest scores; at least one.

    Of equal scores, the first heads are taken.
    """
    chosen = []
    for score in scores:
        order = torch.sort(score, descending=True, stable=True).indices
        chosen.append(sorted(order[: max(1, round(fraction * len(score)))].tolist()))
    return chosen
