"""What tests measure of one trained model: its answers and its attention maps, by example.

Metrics of maps are those of retrieval heads, which are chosen on validation examples of the same
condition; what happens in heads and layers that do not retrieve does not count.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from antiphase.analysis.capture import CapturedMaps, LayerMaps, capture
from antiphase.analysis.ground_truth import GroundTruth, ground_truth
from antiphase.analysis.metrics.allocation import allocation
from antiphase.analysis.retrieval_heads import RetrievalHeads, retrieval_heads
from antiphase.experiments.conditions import AS_TRAINED, STRESS, Condition
from antiphase.experiments.trained_models import TrainedModel
from antiphase.tasks.base import IGNORED, as_tensors

EXAMPLES = 256  # for answers
SEQUENCES = 48  # for maps
BATCH = 64
TEMPERATURES = [2 ** (step / 8) for step in range(-16, 17)]  # 0.25 to 4
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Answers:
    """A model's answers to the last question of each sequence."""

    correct: Numbers  # [n], 1 or 0
    loss: Numbers  # [n]
    logits: Tensor  # [n, vocabulary size]
    target: Tensor  # [n]


def answers(
    model: TrainedModel, condition: Condition, size: int | None = None, split: str = "test"
) -> Answers:
    """Return the answers to held-out sequences of the run's task, under a condition."""
    return _answers(model, condition, size or EXAMPLES, split)


@lru_cache(maxsize=1024)
def _answers(model: TrainedModel, condition: Condition, size: int, split: str) -> Answers:
    data = model.held_out(size, split, condition)
    net = model.load()
    logits, targets = [], []
    with torch.no_grad():
        for start in range(0, size, BATCH):
            tokens = data.examples(range(start, min(size, start + BATCH))).tokens
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


def accuracy(model: TrainedModel, condition: Condition = STRESS) -> Numbers:
    """Return the fraction of questions that are answered correctly, by sequence.

    As trained, a sequence has many questions, as in training; in other conditions it has one.
    """
    if condition == AS_TRAINED:
        return accuracy_of_all_questions(model, condition)
    return answers(model, condition).correct


def accuracy_of_all_questions(model: TrainedModel, condition: Condition) -> Numbers:
    """Return the fraction of all questions of a sequence that are answered correctly."""
    return _accuracy_of_all_questions(model, condition, EXAMPLES)


@lru_cache(maxsize=1024)
def _accuracy_of_all_questions(model: TrainedModel, condition: Condition, size: int) -> Numbers:
    data = model.held_out(size, condition=condition)
    net = model.load()
    found = []
    with torch.no_grad():
        for start in range(0, size, BATCH):
            batch = as_tensors(data.examples(range(start, min(size, start + BATCH))))
            labels = batch["labels"][:, 1:]
            predicted = net(batch["input_ids"], use_cache=False).logits[:, :-1].argmax(-1)
            asked = labels != IGNORED
            found.append(((predicted == labels) & asked).sum(1) / asked.sum(1))
    return torch.cat(found).double().numpy()


def answer_loss(model: TrainedModel, condition: Condition = STRESS) -> Numbers:
    """Return the loss on the last answer of each sequence, in nats."""
    return answers(model, condition).loss


def calibrated_loss(model: TrainedModel, condition: Condition = STRESS) -> Numbers:
    """Return the loss on the last answer of each sequence, at the temperature that suits the model.

    Models that answer equally well differ in how certain they are of wrong answers, mostly by their
    learning rate (docs/log.md). The logits are divided by the number that gives the lowest loss on
    validation sequences of the same condition.
    """
    return _calibrated_loss(model, condition)


def _calibrated_loss(model: TrainedModel, condition: Condition) -> Numbers:
    known = answers(model, condition, 2 * EXAMPLES, "validation")
    losses = [F.cross_entropy(known.logits / t, known.target) for t in TEMPERATURES]
    best = TEMPERATURES[int(torch.stack(losses).argmin())]
    found = answers(model, condition)
    return F.cross_entropy(found.logits / best, found.target, reduction="none").double().numpy()


def validation_errors(model: TrainedModel, condition: Condition) -> Numbers:
    """Return whether each last answer is wrong, of validation sequences, which no test measures."""
    return 1 - answers(model, condition, 2 * EXAMPLES, "validation").correct


@dataclass(frozen=True, eq=False)
class MapsOnTask:
    """A model's maps at the last question of held-out sequences, and where the answer is."""

    captured: CapturedMaps
    truth: GroundTruth
    ids: Tensor  # [B, T]

    @property
    def layers(self) -> list[LayerMaps]:
        """Return the maps of each layer."""
        return self.captured.layers


def maps_on_task(
    model: TrainedModel,
    condition: Condition = STRESS,
    step: int | None = None,
    split: str = "test",
) -> MapsOnTask:
    """Capture the maps at the row that predicts the last answer.

    Args:
        model: to run.
        condition: of the sequences.
        step: a milestone; default: the run's end.
        split: of the task.
    """
    return _maps_on_task(model, condition, step, split, SEQUENCES)


@lru_cache(maxsize=64)
def _maps_on_task(
    model: TrainedModel, condition: Condition, step: int | None, split: str, sequences: int
) -> MapsOnTask:
    batch = model.held_out(sequences, split, condition).examples(range(sequences))
    truth = ground_truth(batch, last=1)
    ids = torch.from_numpy(batch.tokens)
    captured = capture(model.load(step), ids, truth.rows, hidden=True, scores=True, outputs=True)
    return MapsOnTask(captured, truth, ids)


@lru_cache(maxsize=512)
def heads_that_retrieve(model: TrainedModel, condition: Condition = STRESS) -> RetrievalHeads:
    """Return the retrieval heads of a model, chosen on validation examples."""
    maps = maps_on_task(model, condition, split="validation")
    return retrieval_heads(maps.captured, maps.truth)


HeadMetric = Callable[[LayerMaps, GroundTruth], Tensor]
"""From a layer's maps to one number per sequence and head, [B, h] or [B, h, n]."""


def in_retrieval_heads(
    model: TrainedModel,
    metric: HeadMetric,
    condition: Condition = STRESS,
    step: int | None = None,
) -> Numbers:
    """Return the mean of a metric over the model's retrieval heads, by example."""
    maps = maps_on_task(model, condition, step)
    values = [metric(layer, maps.truth) for layer in maps.layers]
    found = heads_that_retrieve(model, condition).model_mean(values)
    if found is None:
        raise ValueError(f"{model.run.title}: no head has any mass on R")
    return found.double().numpy()


def in_layer(
    model: TrainedModel, metric: HeadMetric, layer: int, condition: Condition = STRESS
) -> Numbers | None:
    """Return the mean of a metric over the retrieval heads of a layer; None if it has none."""
    maps = maps_on_task(model, condition)
    values = metric(maps.layers[layer], maps.truth)
    found = heads_that_retrieve(model, condition).layer_mean(values, layer)
    return None if found is None else found.double().numpy()


def mass(model: TrainedModel, kind: str, condition: Condition = STRESS) -> Numbers:
    """Return the mass of retrieval heads on `relevant`, `sink`, `irrelevant` or `own` positions.

    Questions without an answer are left out: there is nothing that their row should attend to.
    """

    def metric(layer: LayerMaps, truth: GroundTruth) -> Tensor:
        found = allocation(layer.difference, truth)[kind]  # [B, h, n]
        return found.masked_fill(~truth.relevant.any(-1)[:, None], torch.nan)

    found = in_retrieval_heads(model, metric, condition)
    return found[~np.isnan(found)]


@lru_cache(maxsize=32)
def complete_maps(model: TrainedModel, sequences: int = 8) -> list[LayerMaps]:
    """Capture the complete maps of a few sequences as in training, for ranks."""
    batch = model.held_out(sequences, condition=AS_TRAINED).examples(range(sequences))
    return capture(model.load(), torch.from_numpy(batch.tokens), "all").layers


def by_example(values: list[Tensor]) -> Numbers:
    """Return the mean over layers, heads and rows of tensors [B, ...], one per layer: [B]."""
    return np.stack([v.double().flatten(1).mean(1).numpy() for v in values]).mean(0)
