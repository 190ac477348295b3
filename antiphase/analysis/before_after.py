"""What a language model can do, before and after: text, needles in words, where it looks, speed."""

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

Numbers = NDArray[np.float64]
DECODED, ROUNDS = 16, 5


@dataclass(frozen=True)
class Measured:
    """Numbers by held-out text, then by question."""

    loss: Numbers  # nats a token, by text
    right: Numbers  # 1 or 0, by question
    depth: Numbers
    answer: Numbers  # share of attention on the needle, over all heads and layers
    noise: Numbers
    sink: Numbers

    def as_json(self) -> dict[str, Any]:
        """Return plain numbers."""
        return {name: values.tolist() for name, values in vars(self).items()}

    @classmethod
    def of_json(cls, kept: dict[str, Any]) -> "Measured":
        """Return what `as_json` gave."""
        return cls(**{name: np.array(v, dtype=np.float64) for name, v in kept.items()})


def measure(model: Any, held_out: Language, needles: WordNeedles, questions: int) -> Measured:
    """Measure everything; the same texts and questions for every model."""
    training = model.training
    model.eval()
    found = [_ask(model, needles.question(i)) for i in range(questions)]
    by_name = {name: np.array([row[name] for row in found]) for name in found[0]}
    measured = Measured(loss=_losses(model, held_out), **by_name)
    model.train(training)
    return measured


@torch.no_grad()
def _losses(model: Any, held_out: Language) -> Numbers:
    losses = []
    for i in range(len(held_out)):
        ids = held_out[i]["input_ids"][None].to(model.device)
        logits = model(input_ids=ids, use_cache=False).logits[0, :-1].float()
        losses.append(float(F.cross_entropy(logits, ids[0, 1:])))
    return np.array(losses)


def _ask(model: Any, question: Question) -> dict[str, float]:
    """Return whether the answer is right, and where the row before it looks."""
    ids = torch.tensor(question.ids)
    T = len(ids)
    asked = torch.arange(question.answer - 1, T - 1)
    seen = capture(model, ids[None], asked[None])
    right = bool((seen.logits[0].argmax(-1).cpu() == ids[asked + 1]).all())
    here = torch.arange(T)
    relevant = torch.zeros(T, dtype=torch.bool)
    relevant[question.relevant] = True
    sink = here == 0
    irrelevant = (here <= question.row) & ~relevant & ~sink
    truth = GroundTruth(
        rows=torch.tensor([[question.row]]),
        relevant=relevant[None, None],
        sink=sink[None, None],
        irrelevant=irrelevant[None, None],
        depth=torch.tensor([[question.depth]]),
    )
    at = int((asked == question.row).nonzero()[0, 0])
    shares = [allocation(m.difference[:, :, at : at + 1].cpu(), truth) for m in seen.layers]
    mean = {k: float(torch.stack([s[k].mean() for s in shares]).mean()) for k in shares[0]}
    return {
        "right": float(right),
        "depth": question.depth,
        "answer": mean["relevant"],
        "noise": mean["irrelevant"],
        "sink": mean["sink"],
    }


@torch.no_grad()
def decoding_speeds(models: list[Any]) -> list[float]:
    """Return tokens a second of decoding one text, by model: they take turns, the median counts."""
    rates: list[list[float]] = [[] for _ in models]
    for _ in range(ROUNDS):
        for model, mine in zip(models, rates, strict=True):
            ids = (
                torch.arange(64, device=model.device)[None]
                % model.get_input_embeddings().num_embeddings
            )
            out = model(input_ids=ids, use_cache=True)
            began = time.perf_counter()
            for _ in range(DECODED):
                token = out.logits[:, -1:].argmax(-1)
                out = model(input_ids=token, past_key_values=out.past_key_values, use_cache=True)
            mine.append(DECODED / (time.perf_counter() - began))
    return [statistics.median(mine) for mine in rates]
