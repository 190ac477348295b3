"""What tests measure of one trained model: its answers and its attention maps, by example."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from antiphase.analysis.capture import CapturedMaps, LayerMaps, capture
from antiphase.analysis.ground_truth import GroundTruth, ground_truth
from antiphase.experiments.trained_models import TrainedModel

EXAMPLES = 256  # for answers
SEQUENCES = 48  # for maps
Numbers = NDArray[np.float64]

# Each needle occurs once, where training repeats them, so that only retrieval helps.
NEEDLES_ONCE: dict[str, Any] = {"repeats": 0}


@dataclass(frozen=True)
class Answers:
    """A model's answers to the last question of each sequence."""

    correct: Numbers  # [n], 1 or 0
    loss: Numbers  # [n]
    logits: Tensor  # [n, vocabulary size]
    target: Tensor  # [n]


@lru_cache(maxsize=512)
def _answers(model: TrainedModel, size: int, split: str, changes: tuple[Any, ...]) -> Answers:
    task = model.held_out(size, split, **dict(changes))
    net = model.load()
    logits, targets = [], []
    with torch.no_grad():
        for start in range(0, size, 64):
            tokens = task.examples(range(start, min(size, start + 64))).tokens
            ids = torch.from_numpy(tokens)
            logits.append(net(ids, use_cache=False, logits_to_keep=2).logits[:, 0])
            targets.append(ids[:, -1])
    every, target = torch.cat(logits), torch.cat(targets)
    return Answers(
        (every.argmax(-1) == target).double().numpy(),
        F.cross_entropy(every, target, reduction="none").double().numpy(),
        every,
        target,
    )


def answers(
    model: TrainedModel, size: int | None = None, split: str = "test", **changes: Any
) -> Answers:
    """Return the answers on held-out sequences of the run's task, with some options changed."""
    return _answers(model, size or EXAMPLES, split, tuple(sorted(changes.items())))


@dataclass(frozen=True, eq=False)
class MapsOnTask:
    """A model's maps on held-out sequences, and where its attention should go in them."""

    captured: CapturedMaps
    truth: GroundTruth
    ids: Tensor  # [B, T]

    @property
    def layers(self) -> list[LayerMaps]:
        """Return the maps of each layer."""
        return self.captured.layers


def maps_on_task(model: TrainedModel, step: int | None = None) -> MapsOnTask:
    """Capture the maps at the rows that predict answers, at the run's end or at a milestone."""
    return _maps_on_task(model, step, SEQUENCES)


@lru_cache(maxsize=32)
def _maps_on_task(model: TrainedModel, step: int | None, sequences: int) -> MapsOnTask:
    batch = model.held_out(sequences).examples(range(sequences))
    truth = ground_truth(batch)
    ids = torch.from_numpy(batch.tokens)
    net = model.load(step)
    captured = capture(net, ids, truth.rows, hidden=True, scores=True, outputs=True)
    return MapsOnTask(captured, truth, ids)


@lru_cache(maxsize=32)
def complete_maps(model: TrainedModel, sequences: int = 8) -> list[LayerMaps]:
    """Capture the complete maps of a few sequences, for ranks."""
    ids = torch.from_numpy(model.held_out(sequences).examples(range(sequences)).tokens)
    return capture(model.load(), ids, "all").layers


def by_example(values: list[Tensor]) -> Numbers:
    """Return the mean over layers, heads and rows of tensors [B, ...], one per layer: [B]."""
    return np.stack([v.double().flatten(1).mean(1).numpy() for v in values]).mean(0)


def pooled(per_seed: list[Numbers]) -> float:
    """Return the mean over seeds of the mean over examples; NaN if it is not finite."""
    found = float(np.mean([v.mean() for v in per_seed]))
    return found if math.isfinite(found) else float("nan")
