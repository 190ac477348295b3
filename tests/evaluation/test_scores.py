"""Scores against models whose answers are known."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from antiphase.evaluation import score_answers, score_text
from antiphase.tasks import Language, task
from tests.models.tiny import model


class Oracle(nn.Module):
    """Predict the next token from the sequence itself, right for a given fraction, else `wrong`."""

    def __init__(self, vocabulary: int, right: float, wrong: int = 0) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))
        self.vocabulary, self.right, self.wrong = vocabulary, right, wrong

    def forward(self, input_ids, use_cache=False):
        following = input_ids.roll(-1, dims=1)
        seen = torch.arange(input_ids.numel()).view_as(input_ids) % 100 < 100 * self.right
        guess = torch.where(seen, following, torch.full_like(following, self.wrong))
        return SimpleNamespace(logits=20.0 * nn.functional.one_hot(guess, self.vocabulary).float())


@pytest.mark.parametrize("name", ["needle", "recall", "many_shot", "arithmetic"])
def test_an_oracle_is_always_right_and_a_wrong_model_never(name):
    dataset = task(name)(split="validation", size=64)
    scores = score_answers(Oracle(dataset.vocab_size, 1.0), dataset)
    assert (scores["accuracy"], scores["last_accuracy"], scores["sequence_accuracy"]) == (1, 1, 1)
    assert scores["loss"] < 1e-3
    scores = score_answers(Oracle(dataset.vocab_size, 0.0), dataset)
    assert (scores["accuracy"], scores["sequence_accuracy"]) == (0, 0)
    assert scores["loss"] == pytest.approx(20.0, abs=0.1)


def test_refusals_are_scored_separately():
    dataset = task("unanswerable")(split="validation", size=200)
    right = score_answers(Oracle(dataset.vocab_size, 1.0), dataset)
    assert (right["wrong_when_absent"], right["refused_when_present"]) == (0, 0)
    meek = score_answers(Oracle(dataset.vocab_size, 0.0, wrong=dataset.refusal), dataset)
    assert (meek["wrong_when_absent"], meek["refused_when_present"]) == (0, 1)
    bold = score_answers(Oracle(dataset.vocab_size, 0.0, wrong=dataset.first_value), dataset)
    assert (bold["wrong_when_absent"], bold["refused_when_present"]) == (1, 0)


def test_loss_on_text_is_split_by_recall_hits(tmp_path, monkeypatch):
    for i in range(200):
        (tmp_path / f"{i}.txt").write_text(f"{i} abcabcabc {i * 7} xyzxyz " * 5)
    with monkeypatch.context() as patch:  # not for the model, which would build its kernels again
        patch.setenv("ANTIPHASE_CACHE", str(tmp_path / "cache"))
        text = Language(split="validation", text=str(tmp_path), length=64)
    perfect = score_text(Oracle(text.vocab_size, 1.0), text)
    assert perfect["loss"] < 1e-3
    assert perfect["perplexity"] == pytest.approx(math.exp(perfect["loss"]))
    assert 0.3 < perfect["recall_fraction"] < 0.95
    net = model("diff_v1", vocab_size=text.vocab_size)
    scores = score_text(net.train(), text)
    assert net.training
    total = scores["recall_fraction"] * scores["recall_loss"]
    total += (1 - scores["recall_fraction"]) * scores["other_loss"]
    assert total == pytest.approx(scores["loss"], rel=1e-5)
