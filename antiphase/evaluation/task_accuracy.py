"""Accuracy on the made-up tasks: the tokens asked for that a model predicts."""

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
    """Return accuracy over all targets, over last targets, over whole texts, and the loss.

    An unanswerable task adds wrong answers where there is none, and refusals where there is one.
    """
    training = model.training
    model.eval()
    device = next(model.parameters()).device
    right, last, whole, losses, extra = [], [], [], [], []
    n = min(examples, len(task))
    for start in range(0, n, batch):
        tensors = as_tensors(task.examples(range(start, min(n, start + batch))))
        ids, labels = tensors["input_ids"].to(device), tensors["labels"][:, 1:]
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1].float().cpu()
        asked = labels != IGNORED
        guess = logits.argmax(-1)
        hit = (guess == labels) & asked
        right.append(hit[asked].numpy())
        whole.append(((hit | ~asked).all(-1)).numpy())
        place = asked.shape[1] - 1 - asked.flip(1).int().argmax(1)  # of each text's last target
        last.append(hit.gather(1, place[:, None])[:, 0].numpy())
        losses.append(F.cross_entropy(logits[asked], labels[asked], reduction="none").numpy())
        if isinstance(task, Unanswerable):
            extra.append(np.stack([labels[:, -1].numpy(), guess[:, -1].numpy()]))
    model.train(training)
    scores = {
        "accuracy": float(np.concatenate(right).mean()),
        "last_accuracy": float(np.concatenate(last).mean()),
        "text_accuracy": float(np.concatenate(whole).mean()),
        "loss": float(np.concatenate(losses).mean()),
    }
    return scores | (_refusals(task, np.concatenate(extra, axis=1)) if extra else {})


def _refusals(task: Any, truth_and_guess: np.ndarray) -> dict[str, float]:
    truth, guess = truth_and_guess
    absent, refused = truth == task.refusal, guess == task.refusal
    return {
        "wrong_when_absent": float((~refused[absent]).mean()) if absent.any() else float("nan"),
        "refused_when_present": float(refused[~absent].mean()) if (~absent).any() else float("nan"),
    }
