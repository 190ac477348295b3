"""What a language model can do, before and after training: loss on text, needles, attention, speed.

Every model is measured on the same held-out sequences and questions.
"""

import statistics
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from antiphase.analysis.capture import capture
from antiphase.analysis.ground_truth import GroundTruth
from antiphase.analysis.metrics.allocation import allocation
from antiphase.tasks import Language
from antiphase.tasks.word_needles import Question, WordNeedles

Array = NDArray[np.float64]
DECODED, ROUNDS = 16, 5


@dataclass(frozen=True)
class BeforeAfterOptions:
    """How much is measured before and after training."""

    sequences: int = 64  # held-out, of the test split
    questions: int = 40  # needles in words
    question_length: int = 512  # tokens, at most
    needles: int = 8  # per question

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 1:
                raise ValueError(f"{name}: got {value}, expected at least 1")


@dataclass(frozen=True)
class ModelScores:
    """Scores of one model, per held-out sequence and per question.

    Attributes:
        loss: nats per token, [sequences].
        correct: 1 or 0, [questions].
        depth: of the needle in its question, 0 at the start, [questions].
        answer: fraction of attention on the needle, the mean over heads and layers, [questions].
        noise: fraction on all other tokens before the row. The rest is on the row's own token.
        sink: fraction on the first token.
    """

    loss: Array
    correct: Array
    depth: Array
    answer: Array
    noise: Array
    sink: Array

    def as_json(self) -> dict[str, Any]:
        """Return plain lists."""
        return {name: values.tolist() for name, values in vars(self).items()}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> "ModelScores":
        """Return what `as_json` gave."""
        return cls(**{name: np.array(v, dtype=np.float64) for name, v in stored.items()})


def score_model(
    model: Any, held_out: Language, needles: WordNeedles, questions: int
) -> ModelScores:
    """Measure a model.

    Args:
        model: a causal language model; its mode (train or eval) is kept.
        held_out: sequences for the loss.
        needles: questions in words, for the model's tokenizer.
        questions: number of them.

    Returns:
        One value per sequence or question.
    """
    training = model.training
    model.eval()
    answers = [_answer(model, needles.question(i)) for i in range(questions)]
    by_name = {name: np.array([row[name] for row in answers]) for name in answers[0]}
    scores = ModelScores(loss=_losses(model, held_out), **by_name)
    model.train(training)
    return scores


@torch.no_grad()
def _losses(model: Any, held_out: Language) -> Array:
    losses = []
    for i in range(len(held_out)):
        ids = held_out[i]["input_ids"][None].to(model.device)
        logits = model(input_ids=ids, use_cache=False).logits[0, :-1].float()
        losses.append(float(F.cross_entropy(logits, ids[0, 1:])))
    return np.array(losses)


def _answer(model: Any, question: Question) -> dict[str, float]:
    """Return whether the answer is correct, and where the token before it attends."""
    ids = torch.tensor(question.ids)
    T = len(ids)
    answer_rows = torch.arange(question.answer - 1, T - 1)
    seen = capture(model, ids[None], answer_rows[None])
    correct = bool((seen.logits[0].argmax(-1).cpu() == ids[answer_rows + 1]).all())
    positions = torch.arange(T)
    relevant = torch.zeros(T, dtype=torch.bool)
    relevant[question.relevant] = True
    sink = positions == 0
    irrelevant = (positions < question.row) & ~relevant & ~sink  # without the row's own
    truth = GroundTruth(
        rows=torch.tensor([[question.row]]),
        relevant=relevant[None, None],
        sink=sink[None, None],
        irrelevant=irrelevant[None, None],
        depth=torch.tensor([[question.depth]]),
    )
    row = int((answer_rows == question.row).nonzero()[0, 0])
    layers = [allocation(m.difference[:, :, row : row + 1].cpu(), truth) for m in seen.layers]
    mean = {k: float(torch.stack([layer[k].mean() for layer in layers]).mean()) for k in layers[0]}
    return {
        "correct": float(correct),
        "depth": question.depth,
        "answer": mean["relevant"],
        "noise": mean["irrelevant"],
        "sink": mean["sink"],
    }


@torch.no_grad()
def decoding_speeds(models: list[Any]) -> list[float]:
    """Return the tokens per second of decoding one sequence, per model.

    The models take turns, and the median over rounds counts.
    """
    rates: list[list[float]] = [[] for _ in models]
    for _ in range(ROUNDS):
        for model, own_rates in zip(models, rates, strict=True):
            vocab_size = model.get_input_embeddings().num_embeddings
            ids = torch.arange(64, device=model.device)[None] % vocab_size
            out = model(input_ids=ids, use_cache=True)
            began = time.perf_counter()
            for _ in range(DECODED):
                token = out.logits[:, -1:].argmax(-1)
                out = model(input_ids=token, past_key_values=out.past_key_values, use_cache=True)
            own_rates.append(DECODED / (time.perf_counter() - began))
    return [statistics.median(own_rates) for own_rates in rates]
