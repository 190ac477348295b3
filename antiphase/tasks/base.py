"""What made-up tasks share: examples by index, splits that never meet, ground truth by position.

Example i depends on (task, options, seed, split, i) and on nothing else, so runs resume, shard and
compare exactly. An example belongs to the split that its content hashes to: the same text cannot
stand in two splits, whatever the seeds.
"""

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, fields
from enum import IntEnum
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from antiphase.options import build
from antiphase.tasks.counter_rng import Draw, fingerprints, key_of

Array = NDArray[np.int64]
IGNORED = -100  # the label of a token that is not asked for
SPLITS = {"train": range(8), "validation": range(8, 9), "test": range(9, 10)}  # tenths of all texts
PAD, BOS = 0, 1
_ATTEMPTS = 400


class Role(IntEnum):
    """What a position is, for analysis."""

    PAD = 0
    SINK = 1  # the first token
    HAYSTACK = 2  # neither here nor there
    NOISE = 3  # looks like a needle, has another key
    KEY = 4  # of a needle
    ANSWER = 5  # of a needle: what is to be found
    QUERY = 6  # asks
    TARGET = 7  # the answer, where it is asked for


@dataclass
class Examples:
    """A batch of texts with their ground truth, each [B, T].

    `labels` are the tokens asked for, IGNORED elsewhere. `needle` numbers what belongs together:
    the row that predicts a target finds it at the KEY and ANSWER positions of the same number.
    """

    tokens: Array
    labels: Array
    roles: Array
    needle: Array

    @classmethod
    def blank(cls, B: int, T: int, token: int) -> "Examples":
        """Return texts of one token with nothing asked for."""
        tokens = np.full((B, T), token, dtype=np.int64)
        roles = np.full((B, T), Role.HAYSTACK, dtype=np.int64)
        tokens[:, 0], roles[:, 0] = BOS, Role.SINK
        return cls(tokens, np.full((B, T), IGNORED), roles, np.full((B, T), -1))

    def ask(self) -> None:
        """Make every TARGET token a label."""
        self.labels = np.where(self.roles == Role.TARGET, self.tokens, IGNORED)

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True)
class TaskOptions:
    """What all tasks have: the length of a text in tokens."""

    length: int = 64

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) is int and value < 0:
                raise ValueError(f"{field.name}: got {value}, expected 0 or more")
        if self.length < 8:
            raise ValueError(f"length: got {self.length}, expected at least 8 tokens")


class Task(Dataset[dict[str, torch.Tensor]], ABC):
    """A map-style dataset of made-up texts; a subclass draws them."""

    name: ClassVar[str]
    version: ClassVar[int] = 1  # raised by hand when the meaning of its examples changes
    Options: ClassVar[type[TaskOptions]] = TaskOptions
    arrangement: ClassVar[tuple[str, ...]] = ()  # options that arrange a text and leave its content

    def __init__(
        self, split: str = "train", size: int = 1000, seed: int = 0, **options: Any
    ) -> None:
        if split not in SPLITS:
            raise ValueError(f"split: got {split!r}, allowed are {', '.join(SPLITS)}")
        if size < 1:
            raise ValueError(f"size: got {size}, expected at least 1 example")
        self.split, self.size, self.seed = split, size, seed
        self.options: Any = build(f"task {self.name!r}", self.Options, options)
        self.words = self.vocabulary()
        content = {k: v for k, v in asdict(self.options).items() if k not in self.arrangement}
        self._key = key_of(self.name, self.version, content, seed, split)
        self.check()

    @abstractmethod
    def vocabulary(self) -> list[str]:
        """Return the tokens in words, by their number; 0 is padding, 1 begins a text."""

    def check(self) -> None:
        """Refuse options that do not go together."""

    @abstractmethod
    def draw(self, random: Draw) -> Examples:
        """Return a batch of texts from their random numbers."""

    def content(self, tokens: Array) -> Array:
        """Return what makes a text the same as another one, [B, n]."""
        return tokens

    @property
    def vocab_size(self) -> int:
        """Return the number of tokens."""
        return len(self.words)

    @property
    def length(self) -> int:
        """Return the tokens of a text."""
        return int(self.options.length)

    @property
    @abstractmethod
    def chance(self) -> float:
        """Return the accuracy of a guess among the possible answers."""

    def examples(self, indices: Any) -> Examples:
        """Return the examples of those numbers, made in one go."""
        wanted = np.asarray(indices, dtype=np.int64)
        T = self.length
        out = Examples(*(np.zeros((len(wanted), T), dtype=np.int64) for _ in range(4)))
        open_rows = np.arange(len(wanted))
        for attempt in range(_ATTEMPTS):
            made = self.draw(Draw(self._key, wanted[open_rows], attempt))
            tenth = fingerprints(self.content(made.tokens)) % np.uint64(10)
            mine = np.isin(tenth, list(SPLITS[self.split]))
            rows = open_rows[mine]
            for field in fields(Examples):
                getattr(out, field.name)[rows] = getattr(made, field.name)[mine]
            open_rows = open_rows[~mine]
            if not len(open_rows):
                return out
        raise ValueError(
            f"{self.name}: no text of the {self.split!r} split in {_ATTEMPTS} draws; these options "
            f"leave too few different texts: {self.options}"
        )

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if not 0 <= index < self.size:
            raise IndexError(f"{self.name}: has {self.size} examples, asked for number {index}")
        return rows_of(self.examples([index]))[0]

    def __getitems__(self, indices: list[int]) -> list[dict[str, torch.Tensor]]:
        return rows_of(self.examples(indices))


def rows_of(batch: Examples) -> list[dict[str, torch.Tensor]]:
    """Return a batch as one dictionary a text, as data loaders like it."""
    tensors = as_tensors(batch)
    return [{name: t[i] for name, t in tensors.items()} for i in range(len(batch))]


def as_tensors(batch: Examples) -> dict[str, torch.Tensor]:
    """Return a batch as tensors, in the names that models and the analysis know."""
    return {
        "input_ids": torch.from_numpy(batch.tokens),
        "labels": torch.from_numpy(batch.labels),
        "roles": torch.from_numpy(batch.roles),
        "needle": torch.from_numpy(batch.needle),
    }


def named(kind: str, n: int) -> list[str]:
    """Return n words of a kind: key0, key1, ..."""
    return [f"{kind}{i}" for i in range(n)]
