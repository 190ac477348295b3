"""Sequences to look at: examples of a task with their ground truth, or text in a model's tokens."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from antiphase.analysis.ground_truth import GroundTruth, ground_truth, without_answers
from antiphase.explorer.models import ExploredModel
from antiphase.explorer.state import Drawn
from antiphase.options import nearest
from antiphase.tasks import task as task_of
from antiphase.tasks.base import Role
from antiphase.tasks.registry import TASKS
from antiphase.tasks.word_needles import WordNeedles

MAX_TOKENS = 512
LENGTH = 64  # of an example of a synthetic task, if nobody asks for another
WORD_LENGTH = 192  # the same in the tokens of a pretrained model
TEXT_ROWS = 64  # rows of text whose maps are measured, at its end
DEFAULT_TEXT = "The cat sat on the mat. The dog lay on the rug. Where did the cat sit? On the"


@dataclass(frozen=True)
class TokenSequence:
    """A sequence in the tokens of one model.

    Attributes:
        ids: [1, T]; [2, T] for a mechanism that mixes sequences, whose second one is a companion.
        tokens: token strings, [T].
        truth: the rows to measure, and what their keys are.
        row: the query position that is shown first.
        roles: what each position is, in lower case ("key", "noise"); empty for text.
        relevant: positions of R, by the row that asks for them.
        note: what a reader should know about the sequence and this model.
        drawn: the options that the example was drawn with; empty for text.
        vocabulary: token strings by id where the task's are not those of the model's own task.
    """

    ids: Tensor
    tokens: list[str]
    truth: GroundTruth
    row: int
    roles: list[str] = field(default_factory=list)
    relevant: dict[int, list[int]] = field(default_factory=dict)
    note: str = ""
    drawn: dict[str, Any] = field(default_factory=dict)
    vocabulary: list[str] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Return T."""
        return self.ids.shape[1]

    @property
    def answers(self) -> bool:
        """Return whether it is known where the answers are."""
        return bool(self.relevant)

    @property
    def key(self) -> bytes:
        """Return what identifies the tokens, and what is known about them."""
        return self.ids.numpy().tobytes() + repr((self.roles, self.drawn)).encode()


def sequence_of(
    explored: ExploredModel, text: str | None, drawn: Drawn, most: int = MAX_TOKENS
) -> TokenSequence:
    """Return text, or an example of a task, in the tokens of a model.

    Args:
        explored: the model.
        text: to tokenize; None for an example.
        drawn: which example.
        most: the largest number of tokens.

    Raises:
        ValueError: the model has no such task or token, or the sequence is too long or too short.
    """
    if text is not None:
        found = _text(explored, text, most)
    elif explored.tokenizer is not None:
        found = _words(explored, drawn, most)
    elif explored.recipe is None and drawn.task is None:
        found = _random_ids(explored, drawn)
    else:
        found = _task_example(explored, drawn, most)
    return found


def tasks_of(explored: ExploredModel) -> list[str]:
    """Return the tasks whose examples a model can be shown; its own first."""
    if explored.tokenizer is not None:
        return ["needle"]
    own = explored.recipe.task if explored.recipe else "needle"
    return [*dict.fromkeys([own, "needle", "many_shot", "unanswerable"])]


def _check_length(tokens: int, most: int) -> None:
    if tokens > most:
        raise TooLongError(
            f"the sequence has {tokens} tokens, at most {most} are allowed; shorten it"
        )
    if tokens < 2:
        raise ValueError(f"the sequence has {tokens} tokens, expected at least 2; give more text")


class TooLongError(ValueError):
    """A sequence has too many tokens."""


def _text(explored: ExploredModel, text: str, most: int) -> TokenSequence:
    if explored.tokenizer is not None:
        try:
            ids = list(explored.tokenizer(text)["input_ids"])
        except Exception as error:  # tokenizers raises nothing more special
            raise ValueError(f"text: cannot be tokenized ({error})") from error
        _check_length(len(ids), most)
        tokens = [explored.token_name(i) for i in ids]
    else:
        tokens = text.split()
        _check_length(len(tokens), most)
        known = {name: i for i, name in enumerate(explored.vocabulary)}
        for token in tokens:
            if token not in known:
                raise ValueError(
                    f"text: {token[:40]!r} is no token of {explored.entry.title}, whose vocabulary "
                    f"is {', '.join(explored.vocabulary[:4])}, ...{nearest(token[:40], known)}"
                )
        ids = [known[token] for token in tokens]
    batch = torch.tensor([ids])
    truth = without_answers(batch, TEXT_ROWS)
    companion = batch.roll(len(ids) // 2, dims=1)
    return TokenSequence(_mixed(explored, batch, companion), tokens, truth, len(ids) - 1)


def _mixed(explored: ExploredModel, ids: Tensor, companion: Tensor) -> Tensor:
    """Return the batch [B, T] that a model computes: with a companion if it mixes sequences."""
    layers = getattr(getattr(explored.model, "model", None), "attention_layers", [])
    mixes = any(getattr(layer, "mixes_sequences", False) for layer in layers)
    return torch.cat([ids, companion]) if mixes else ids


def _random_ids(explored: ExploredModel, drawn: Drawn) -> TokenSequence:
    """Return random tokens for a model of which neither task nor tokenizer is known."""
    generator = torch.Generator().manual_seed(drawn.example)
    ids = torch.randint(explored.model.config.vocab_size, (2, 32), generator=generator)
    tokens = [explored.vocabulary[i] for i in ids[0].tolist()]
    truth = without_answers(ids[:1], TEXT_ROWS)
    note = "Random tokens: neither the model's task nor its tokenizer is known."
    return TokenSequence(_mixed(explored, ids[:1], ids[1:]), tokens, truth, 31, note=note)


def _task_example(explored: ExploredModel, drawn: Drawn, most: int) -> TokenSequence:
    own = explored.recipe.task if explored.recipe else "needle"
    name = drawn.task or own
    kind = task_of(name)  # raises for a task that does not exist
    options = _task_options(explored, name, drawn)
    _check_length(int(options["length"]), most)
    data = kind(split="test", size=drawn.example + 2, seed=drawn.seed, **options)
    batch = data.examples([drawn.example, drawn.example + 1])
    if batch.tokens.max() >= explored.model.config.vocab_size:
        raise ValueError(
            f"{name}: uses {data.vocab_size} different tokens, {explored.entry.title} has "
            f"{explored.model.config.vocab_size}; draw an example of {own}"
        )
    first = dataclasses.replace(
        batch, **{f.name: getattr(batch, f.name)[:1] for f in dataclasses.fields(batch)}
    )
    truth = ground_truth(first)
    ids = torch.from_numpy(batch.tokens)
    rows = truth.rows[0].tolist()
    relevant = {
        row: truth.relevant[0, i].nonzero()[:, 0].tolist()
        for i, row in enumerate(rows)
        if bool(truth.relevant[0, i].any())
    }
    note = "" if name == own else f"It was trained on {own}, not on {name}."
    shown = {n: v for n, v in options.items() if v is not None}
    return TokenSequence(
        _mixed(explored, ids[:1], ids[1:]),
        [data.id_to_token[token] for token in ids[0].tolist()],
        truth,
        rows[-1],
        [Role(role).name.lower() for role in first.roles[0]],
        relevant,
        note,
        {"task": name, "seed": drawn.seed, "example": drawn.example, **shown},
        [*data.id_to_token, *explored.vocabulary[data.vocab_size :]],
    )


def _task_options(explored: ExploredModel, name: str, drawn: Drawn) -> dict[str, Any]:
    """Return the options of an example: those of training, with one query and as drawn."""
    allowed = {f.name for f in dataclasses.fields(task_of(name).Options)}
    trained = explored.recipe.task_options if explored.recipe else {}
    options = {n: v for n, v in trained.items() if n in allowed}
    options |= {"length": drawn.length or LENGTH, "repeats": 0, "queried": 1}
    size = explored.model.config.vocab_size
    if name == "many_shot":  # as many words as the model has tokens for, beside 16 labels
        options |= {"vocabulary": min(64, size - 18), "classes": drawn.needles or 4}
    if name == "unanswerable" and trained and "absent" not in trained:
        options["decoys"] = max(1, int(options.get("decoys", 16)) - 1)  # its token is the refusal
    given = {"depth": drawn.depth, "noise": drawn.noise, "near": drawn.near}
    options |= {n: v for n, v in {**given, "needles": drawn.needles}.items() if v is not None}
    return {n: v for n, v in options.items() if n in allowed}


def _words(explored: ExploredModel, drawn: Drawn, most: int) -> TokenSequence:
    """Return the needle task in English; a sentence where the tokenizer is too small for it."""
    try:
        return _word_needle(explored, drawn, most)
    except ValueError:
        if drawn != Drawn(example=drawn.example):
            raise
    found = _text(explored, DEFAULT_TEXT, most)
    return dataclasses.replace(found, note="The needle task in English does not fit this model.")


def _word_needle(explored: ExploredModel, drawn: Drawn, most: int) -> TokenSequence:
    """Return the needle task in English, for a model with a tokenizer."""
    if drawn.task not in (None, "needle"):
        known = f"; {drawn.task} needs a model that was trained on a synthetic task"
        raise ValueError(
            f"task: got {drawn.task!r}, but {explored.entry.title} has a tokenizer and is shown "
            f"the needle task in English{known if drawn.task in TASKS else ''}"
        )
    length = drawn.length or min(WORD_LENGTH, most)
    _check_length(length, most)
    data = WordNeedles(explored.tokenizer, length, drawn.needles or 4, drawn.seed)
    question = data.question(_by_depth(drawn))
    ids = torch.tensor([question.ids[: question.row + 2]])
    T = ids.shape[1]
    truth = _of_question(T, question.row, question.relevant)
    roles = ["haystack"] * T
    roles[0] = "sink"
    for i in question.relevant:
        roles[i] = "answer"
    roles[question.row], roles[question.row + 1] = "query", "target"
    return TokenSequence(
        ids,
        [explored.token_name(i) for i in ids[0].tolist()],
        truth,
        question.row,
        roles,
        {question.row: question.relevant},
        drawn={
            "task": "needle",
            "seed": drawn.seed,
            "example": drawn.example,
            "length": length,
            "depth": question.depth,
            "needles": drawn.needles or 4,
        },
    )


def _by_depth(drawn: Drawn) -> int:
    """Return the question of an index; its depth cycles with the index, so it chooses the depth."""
    from antiphase.tasks.word_needles import DEPTHS

    if drawn.depth is None:
        return drawn.example
    nearest_depth = min(range(len(DEPTHS)), key=lambda i: abs(DEPTHS[i] - (drawn.depth or 0.0)))
    return drawn.example * len(DEPTHS) + nearest_depth


def _of_question(T: int, row: int, relevant: list[int]) -> GroundTruth:
    """Return the ground truth of one row with known relevant positions."""
    position = torch.arange(T)
    R = torch.isin(position, torch.tensor(relevant))
    sink = position == 0
    irrelevant = (position < row) & ~R & ~sink
    R = R & (position < row)
    depth = torch.tensor([[relevant[0] / max(row, 1)]])
    rows = torch.tensor([[row]])
    return GroundTruth(rows, R[None, None], sink[None, None], irrelevant[None, None], depth)
