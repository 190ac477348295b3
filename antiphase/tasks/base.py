"""What synthetic tasks share: examples by index, disjoint splits, ground truth per position.

Example i depends on (task, options, seed, split, i) and on nothing else, so runs resume, shard and
compare exactly. The split of an example is decided by a hash of its tokens: the same sequence
cannot occur in two splits, whatever the seeds.
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
from antiphase.tasks.counter_rng import CounterRNG, hash_key, row_hashes

Array = NDArray[np.int64]
IGNORED = -100  # the label of a position without a target, as in torch.nn.functional.cross_entropy
SPLITS = {"train": range(8), "validation": range(8, 9), "test": range(9, 10)}  # tenths of the hash
PAD, BOS = 0, 1
_MAX_ATTEMPTS = 400
_ROWS = 128  # sequences that are generated at once when an example needs several attempts


class Role(IntEnum):
    """The role of a position in its sequence: the ground truth of the analysis."""

    PAD = 0
    SINK = 1  # the first token
    HAYSTACK = 2  # filler
    NOISE = 3  # a distractor: has the form of a needle, but another key
    KEY = 4  # key of a needle
    ANSWER = 5  # value of a needle, to be retrieved
    QUERY = 6  # the repeated key
    TARGET = 7  # the answer to a query: the token to predict


@dataclass
class Examples:
    """A batch of sequences with their ground truth, each field [B, T].

    Attributes:
        tokens: token ids.
        labels: the tokens to predict at TARGET positions, IGNORED elsewhere.
        roles: the `Role` of each position.
        needle: the number of the needle that a position belongs to, -1 for none. The query that
            predicts a target finds its answer at the KEY and ANSWER positions of the same number.
    """

    tokens: Array
    labels: Array
    roles: Array
    needle: Array

    @classmethod
    def blank(cls, B: int, T: int, token: int) -> "Examples":
        """Return sequences of one repeated token after the first token, without targets."""
        tokens = np.full((B, T), token, dtype=np.int64)
        roles = np.full((B, T), Role.HAYSTACK, dtype=np.int64)
        tokens[:, 0], roles[:, 0] = BOS, Role.SINK
        return cls(tokens, np.full((B, T), IGNORED), roles, np.full((B, T), -1))

    def label_targets(self) -> None:
        """Set the labels: the token at every TARGET position, IGNORED elsewhere."""
        self.labels = np.where(self.roles == Role.TARGET, self.tokens, IGNORED)

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True)
class TaskOptions:
    """What all tasks have: the sequence length in tokens."""

    length: int = 64

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) is int and value < 0:
                raise ValueError(f"{field.name}: got {value}, expected 0 or more")
        if self.length < 8:
            raise ValueError(f"length: got {self.length}, expected at least 8 tokens")


class Task(Dataset[dict[str, torch.Tensor]], ABC):
    """A map-style dataset of synthetic sequences; a subclass generates them.

    Args:
        split: "train", "validation" or "test".
        size: number of examples.
        seed: other seeds give other examples.
        options: fields of the task's `Options`.

    Attributes:
        id_to_token: token strings by token id; 0 is padding, 1 begins a sequence.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1  # increase it when the examples of a seed change
    Options: ClassVar[type[TaskOptions]] = TaskOptions
    # Options that do not enter the random key: they vary a sequence whose other parts stay as drawn
    unkeyed_options: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self, split: str = "train", size: int = 1000, seed: int = 0, **options: Any
    ) -> None:
        if split not in SPLITS:
            raise ValueError(f"split: got {split!r}, allowed are {', '.join(SPLITS)}")
        if size < 1:
            raise ValueError(f"size: got {size}, expected at least 1 example")
        self.split, self.size, self.seed = split, size, seed
        self.options: Any = build(f"task {self.name!r}", self.Options, options)
        self.id_to_token = self.build_vocabulary()
        keyed = {k: v for k, v in asdict(self.options).items() if k not in self.unkeyed_options}
        self._key = hash_key(self.name, self.version, keyed, seed, split)

    @abstractmethod
    def build_vocabulary(self) -> list[str]:
        """Return the token strings by token id, and remember where each kind of token starts."""

    @abstractmethod
    def generate(self, rng: CounterRNG) -> Examples:
        """Return a batch of sequences from their random numbers."""

    def split_key(self, tokens: Array) -> Array:
        """Return what identifies a sequence when it is assigned to a split, [B, n]."""
        return tokens

    @property
    def vocab_size(self) -> int:
        """Return the vocabulary size."""
        return len(self.id_to_token)

    @property
    def length(self) -> int:
        """Return the sequence length in tokens."""
        return int(self.options.length)

    @property
    @abstractmethod
    def chance(self) -> float:
        """Return the accuracy of a random guess among the possible answers."""

    def examples(self, indices: Any) -> Examples:
        """Return a batch of examples by their indices.

        Args:
            indices: [B] example indices; any integers, also beyond `size`.

        Returns:
            The batch, each field [B, T].

        Raises:
            ValueError: the options allow too few different sequences to fill this split.
        """
        wanted = np.asarray(indices, dtype=np.int64)
        T = self.length
        out = Examples(*(np.zeros((len(wanted), T), dtype=np.int64) for _ in range(4)))
        missing, attempt = np.arange(len(wanted)), 0
        while len(missing) and attempt < _MAX_ATTEMPTS:
            # after the first attempt, many at once: small batches cost as much as larger ones
            n = max(1, _ROWS // len(missing)) if attempt else 1
            attempts = np.arange(attempt, min(attempt + n, _MAX_ATTEMPTS))
            candidates = CounterRNG(
                self._key, wanted[missing].repeat(len(attempts)), np.tile(attempts, len(missing))
            )
            batch = self.generate(candidates)
            tenth = row_hashes(self.split_key(batch.tokens)) % np.uint64(10)
            accepted = np.isin(tenth, list(SPLITS[self.split])).reshape(len(missing), -1)
            found = accepted.any(axis=1)
            first = np.arange(len(missing)) * len(attempts) + accepted.argmax(axis=1)
            for field in fields(Examples):
                rows = getattr(batch, field.name)[first[found]]
                getattr(out, field.name)[missing[found]] = rows
            missing, attempt = missing[~found], attempt + len(attempts)
        if not len(missing):
            return out
        raise ValueError(
            f"{self.name}: no sequence of the {self.split!r} split in {_MAX_ATTEMPTS} attempts; "
            f"these options leave too few different sequences: {self.options}"
        )

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if not 0 <= index < self.size:
            raise IndexError(f"{self.name}: has {self.size} examples, got index {index}")
        return unbatch(self.examples([index]))[0]

    def __getitems__(self, indices: list[int]) -> list[dict[str, torch.Tensor]]:
        return unbatch(self.examples(indices))


def unbatch(batch: Examples) -> list[dict[str, torch.Tensor]]:
    """Return a batch as one dictionary of tensors [T] per sequence, for a data loader."""
    tensors = as_tensors(batch)
    return [{name: t[i] for name, t in tensors.items()} for i in range(len(batch))]


def as_tensors(batch: Examples) -> dict[str, torch.Tensor]:
    """Return a batch as tensors [B, T] under the names that models and the analysis use.

    Returns:
        `input_ids`, `labels`, `roles` and `needle`.
    """
    return {
        "input_ids": torch.from_numpy(batch.tokens),
        "labels": torch.from_numpy(batch.labels),
        "roles": torch.from_numpy(batch.roles),
        "needle": torch.from_numpy(batch.needle),
    }


def numbered(prefix: str, n: int) -> list[str]:
    """Return n token strings: key0, key1, ..."""
    return [f"{prefix}{i}" for i in range(n)]
