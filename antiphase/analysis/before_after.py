"""What a language model can do, before and after training: loss on text, needles, attention, speed.

Every model is measured on the same held-out sequences and questions. Of a model with DEX, also how
large the operation is: what never switched on cannot have caused a change.
"""

import statistics
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from antiphase.analysis.capture import capture
from antiphase.analysis.ground_truth import GroundTruth
from antiphase.analysis.metrics.allocation import allocation
from antiphase.evaluation.evaluate import EvaluationOptions
from antiphase.pretrained.dex import DexOutput, operators
from antiphase.tasks import Language
from antiphase.tasks.word_needles import Question, WordNeedles

Array = NDArray[np.float64]
DECODED, ROUNDS = 16, 5

SWITCHED_ON = 0.05
"""Smallest mean of `operation_sizes` at which DEX's operation counts as active."""


@dataclass(frozen=True)
class BeforeAfterOptions:
    """How much is measured before and after training."""

    sequences: int = 64  # held-out, of the test split
    questions: int = 40  # needles in words
    question_length: int = 512  # tokens, at most
    needles: int = 8  # per question
    benchmarks: list[str] = field(default_factory=list)  # of `antiphase evaluate --list`
    benchmark_items: int = 50  # per benchmark
    benchmark_dtype: str = "float32"  # of the weights, for benchmarks

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, int) and value < 1:
                raise ValueError(f"{name}: got {value}, expected at least 1")
        if self.benchmarks:
            self.of_benchmarks()  # raises for unknown names

    def of_benchmarks(self) -> EvaluationOptions:
        """Return the options of `evaluate_model`."""
        return EvaluationOptions(
            tasks=self.benchmarks, limit=self.benchmark_items, dtype=self.benchmark_dtype
        )


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


@torch.no_grad()
def operation_sizes(model: Any, held_out: Language) -> Array:
    """Measure how large DEX's operation is beside the outputs that it changes.

    Args:
        model: with DEX inside, in eval mode, at the step at which it is measured.
        held_out: sequences; one forward pass each.

    Returns:
        ||lam W_D O|| / ||O|| on the selected heads, the mean over layers that have any,
        [sequences]; 0 if no head is selected.

    Raises:
        ValueError: the model has no DEX inside.
    """
    found = operators(model).values()
    if not found:
        raise ValueError(f"{type(model).__name__}: has no DEX inside; measure it before folding")
    active = [operator for operator in found if operator.lam.selected.any()]
    if not active:
        return np.zeros(len(held_out))
    sizes: list[float] = []

    def measure(operator: DexOutput, inputs: tuple[Tensor]) -> None:
        sizes.append(operator.relative_size(inputs[0]))

    hooks = [operator.register_forward_pre_hook(measure) for operator in active]
    try:
        for i in range(len(held_out)):
            model(input_ids=held_out[i]["input_ids"][None].to(model.device), use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return np.array(sizes).reshape(len(held_out), len(active)).mean(1)


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
