"""Accuracy on the synthetic tasks: the fraction of targets that a model predicts."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from antiphase.tasks.base import IGNORED, Task, as_tensors
from antiphase.tasks.unanswerable import Unanswerable


@torch.no_grad()
def score_answers(
    model: nn.Module, task: Task, examples: int = 256, batch: int = 64
) -> dict[str, float]:
    """Score a causal model on a synthetic task.

    Args:
        model: called with `input_ids` [B, T]; its output has `logits` [B, T, V].
        task: the task, usually its validation or test split.
        examples: number of examples, at most the size of the task.
        batch: number of examples per forward pass.

    Returns:
        `accuracy` over all targets, `last_accuracy` over the last target of each sequence,
        `sequence_accuracy` over sequences with all targets right, and `loss` per target. An
        unanswerable task adds `wrong_when_absent` and `refused_when_present`.
    """
    training = model.training
    model.eval()
    device = next(model.parameters()).device
    correct, last, complete, losses, final_tokens = [], [], [], [], []
    n = min(examples, len(task))
    for start in range(0, n, batch):
        tensors = as_tensors(task.examples(range(start, min(n, start + batch))))
        ids, labels = tensors["input_ids"].to(device), tensors["labels"][:, 1:]
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1].float().cpu()
        is_target = labels != IGNORED
        predicted = logits.argmax(-1)
        hit = (predicted == labels) & is_target
        correct.append(hit[is_target].numpy())
        complete.append((hit | ~is_target).all(-1).numpy())
        last_target = is_target.shape[1] - 1 - is_target.flip(1).int().argmax(1)  # [B]
        last.append(hit.gather(1, last_target[:, None])[:, 0].numpy())
        losses.append(
            F.cross_entropy(logits[is_target], labels[is_target], reduction="none").numpy()
        )
        if isinstance(task, Unanswerable):
            final_tokens.append(np.stack([labels[:, -1].numpy(), predicted[:, -1].numpy()]))
    model.train(training)
    scores = {
        "accuracy": float(np.concatenate(correct).mean()),
        "last_accuracy": float(np.concatenate(last).mean()),
        "sequence_accuracy": float(np.concatenate(complete).mean()),
        "loss": float(np.concatenate(losses).mean()),
    }
    if final_tokens:
        scores |= _refusal_errors(task, *np.concatenate(final_tokens, axis=1))
    return scores


def _refusal_errors(task: Any, truth: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    """Return the fractions of absent keys that were answered, and of present ones refused."""
    absent, refused = truth == task.refusal, predicted == task.refusal
    return {
        "wrong_when_absent": float((~refused[absent]).mean()) if absent.any() else float("nan"),
        "refused_when_present": float(refused[~absent].mean()) if (~absent).any() else float("nan"),
    }
