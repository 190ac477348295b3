"""What tests measure of one model that was trained on text: losses, sinks, outliers."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from antiphase.analysis.capture import CapturedMaps, capture
from antiphase.analysis.metrics.allocation import normalised
from antiphase.analysis.metrics.low_bit import low_bit_logits
from antiphase.analysis.metrics.sinks import outliers
from antiphase.evaluation.language_loss import recall_hits
from antiphase.experiments.model_measurements import Numbers, by_example
from antiphase.experiments.trained_models import TrainedModel
from antiphase.training.callbacks import read_metrics

SEQUENCES = 512  # of the test split, for losses
FEW = 16  # for maps and for quantised logits
BATCH = 16
NGRAM = 4  # a token that completes an n-gram seen before is a recall hit
FIRST_ROW = 32  # rows with fewer keys put much on the first one for lack of others


@dataclass(frozen=True, eq=False)
class TextLosses:
    """The loss of every predicted token, and which tokens are recall hits; [n, T - 1] each."""

    loss: Numbers
    hit: np.ndarray


@lru_cache(maxsize=256)
def text_losses(model: TrainedModel, sequences: int = SEQUENCES) -> TextLosses:
    """Return the losses on the test split."""
    data = model.held_out(sequences)
    tokens = data.examples(range(len(data))).tokens
    return TextLosses(_losses(model, torch.from_numpy(tokens)), recall_hits(tokens, NGRAM)[:, 1:])


@torch.no_grad()
def _losses(model: TrainedModel, ids: Tensor) -> Numbers:
    net, found = model.load(), []
    for part in ids.split(BATCH):
        logits = net(part, use_cache=False).logits[:, :-1]
        found.append(F.cross_entropy(logits.mT, part[:, 1:], reduction="none"))
    return torch.cat(found).double().numpy()


def held_out_loss(model: TrainedModel) -> Numbers:
    """Return the loss per token by sequence, in nats."""
    return text_losses(model).loss.mean(1)


def loss_on_hits(model: TrainedModel) -> Numbers:
    """Return the mean loss on recall hits: one number per model."""
    found = text_losses(model)
    return np.array([found.loss[found.hit].mean()])


def loss_on_rest(model: TrainedModel) -> Numbers:
    """Return the mean loss on tokens that are no recall hits: one number per model."""
    found = text_losses(model)
    return np.array([found.loss[~found.hit].mean()])


def fraction_of_hits(model: TrainedModel) -> Numbers:
    """Return the fraction of tokens that are recall hits: one number per model."""
    return np.array([text_losses(model).hit.mean()])


def loss_along_training(model: TrainedModel) -> dict[int, float]:
    """Return the held-out loss (validation split) by the number of tokens trained on."""
    recipe = model.run.recipe
    tokens = recipe.batch_size * int(recipe.task_options["length"])
    lines = [line for line in read_metrics(model.folder) if "held_out_loss" in line]
    return {line["step"] * tokens: float(line["held_out_loss"]) for line in lines}


@lru_cache(maxsize=16)
def maps_on_text(model: TrainedModel) -> CapturedMaps:
    """Capture the maps of a few sequences at the rows from FIRST_ROW on."""
    ids = torch.from_numpy(model.held_out(FEW).examples(range(FEW)).tokens)
    rows = torch.arange(FIRST_ROW, ids.shape[1]).expand(len(ids), -1)
    return capture(model.load(), ids, rows, hidden=True, scores=True)


def mass_on_first(model: TrainedModel) -> Numbers:
    """Return the fraction of |A| on the first token, mean over layers, heads and rows."""
    return by_example([normalised(m.difference)[..., 0] for m in maps_on_text(model).layers])


def largest_head_mass_on_first(model: TrainedModel) -> Numbers:
    """Return that fraction of the head with the most: one number per model."""
    by_head = [normalised(m.difference)[..., 0].mean((0, 2)) for m in maps_on_text(model).layers]
    return np.array([float(torch.cat(by_head).max())])


def outlier(model: TrainedModel, of: str, which: str) -> Numbers:
    """Return a largest or median magnitude of `logits` or `hidden` states: one number per model."""
    captured = maps_on_text(model)
    if of == "hidden":
        return np.array([max(outliers(h)[which] for h in captured.hidden[1:])])
    return np.array([max(outliers(s)[which] for m in captured.layers for s in m.scores)])


def low_bit_increase(model: TrainedModel, bits: int) -> Numbers:
    """Return how much the loss rises when attention logits have so many bits, by sequence."""
    ids = torch.from_numpy(model.held_out(FEW).examples(range(FEW)).tokens)
    before = text_losses(model).loss[:FEW].mean(1)
    with low_bit_logits(model.load(), bits):
        return _losses(model, ids).mean(1) - before
