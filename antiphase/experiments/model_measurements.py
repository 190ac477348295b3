"""What tests ask of a trained model: numbers by example."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from antiphase.analysis.capture import Captured, LayerMaps, capture
from antiphase.analysis.ground_truth import Truth, truth_of
from antiphase.experiments.arms import Trained

EXAMPLES = 256  # for answers
TEXTS = 48  # for maps
Numbers = NDArray[np.float64]

# One occurrence of each needle, where training repeats them: nothing helps but finding it.
HARD: dict[str, Any] = {"repeats": 0}


@dataclass(frozen=True)
class Answers:
    """What a model answers to the last question of each text."""

    right: Numbers  # 1 or 0
    loss: Numbers
    logits: Tensor  # [n, vocabulary]
    truth: Tensor  # [n]


@lru_cache(maxsize=512)
def _answers(trained: Trained, size: int, split: str, changes: tuple[Any, ...]) -> Answers:
    task = trained.held_out(size, split, **dict(changes))
    model = trained.model()
    logits, truth = [], []
    with torch.no_grad():
        for start in range(0, size, 64):
            tokens = task.examples(range(start, min(size, start + 64))).tokens
            ids = torch.from_numpy(tokens)
            logits.append(model(ids, use_cache=False, logits_to_keep=2).logits[:, 0])
            truth.append(ids[:, -1])
    every, answer = torch.cat(logits), torch.cat(truth)
    return Answers(
        (every.argmax(-1) == answer).double().numpy(),
        F.cross_entropy(every, answer, reduction="none").double().numpy(),
        every,
        answer,
    )


def answers(trained: Trained, size: int = EXAMPLES, split: str = "test", **changes: Any) -> Answers:
    """Return the answers on unseen texts, of the run's task or with other options."""
    return _answers(trained, size, split, tuple(sorted(changes.items())))


@dataclass(frozen=True, eq=False)
class Look:
    """A model's maps on unseen texts, and what they should be on."""

    captured: Captured
    truth: Truth
    ids: Tensor

    @property
    def layers(self) -> list[LayerMaps]:
        """Return the maps of each layer."""
        return self.captured.layers


@lru_cache(maxsize=32)
def look(trained: Trained, step: int | None = None, texts: int = TEXTS) -> Look:
    """Return the maps at the rows that answer, at the run's end or at a milestone."""
    batch = trained.held_out(texts).examples(range(texts))
    truth = truth_of(batch)
    ids = torch.from_numpy(batch.tokens)
    model = trained.model(step)
    found = capture(model, ids, truth.rows, hidden=True, scores=True, outputs=True)
    return Look(found, truth, ids)


@lru_cache(maxsize=32)
def whole_maps(trained: Trained, texts: int = 8) -> list[LayerMaps]:
    """Return whole maps of a few texts, for ranks."""
    ids = torch.from_numpy(trained.held_out(texts).examples(range(texts)).tokens)
    rows = torch.arange(ids.shape[1]).expand(texts, -1)
    return capture(trained.model(), ids, rows).layers


def by_example(values: list[Tensor]) -> Numbers:
    """Return the mean over layers, heads and rows of [B, ...] by layer: one number a text."""
    return np.stack([v.double().flatten(1).mean(1).numpy() for v in values]).mean(0)


def pooled(per_seed: list[Numbers]) -> float:
    """Return the mean over seeds of the mean over examples."""
    found = float(np.mean([v.mean() for v in per_seed]))
    return found if math.isfinite(found) else float("nan")
