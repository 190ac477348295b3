"""Language modelling: predict each next token of text files or of Python's standard library.

    def  fold er ( path ) :  return  path .parent ..

Sequences of `length` tokens are cut from the packed corpus and come in a random order, another one
in each epoch. Documents are separated by the end token, and a sequence may span several.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch.utils.data import Dataset

from antiphase.options import build
from antiphase.tasks.base import Array, Examples, Role, unbatch
from antiphase.tasks.counter_rng import hash_key, permuted, splitmix64
from antiphase.tasks.text.corpus import BUILTIN
from antiphase.tasks.text.packed import SPLIT_PERCENTILES, PackedCorpus
from antiphase.tasks.text.packing import PACKED, pack
from antiphase.tasks.text.tokenizer import BYTES

SORTED = 1 << 22  # sequences whose order is kept in memory; of more, each place is computed


@dataclass(frozen=True)
class LanguageOptions:
    """The text and how it is cut.

    Attributes:
        length: sequence length in tokens.
        text: sources of text: files, globs, folders, `stdlib`, `datasets:NAME`; or `packed:FOLDER`.
        tokenizer: `bytes`, `bpe:SIZE`, or a tokenizer's folder or hub name; by default that of a
            packed corpus, else `bytes`.
    """

    length: int = 256
    text: list[str] | str = field(default_factory=lambda: [BUILTIN])
    tokenizer: str | None = None

    def __post_init__(self) -> None:
        if self.length < 2:
            raise ValueError(f"length: got {self.length}, expected at least 2 tokens")


class Language(Dataset[dict[str, torch.Tensor]]):
    """A map-style dataset of the sequences of a corpus.

    Args:
        split: "train", "validation" or "test".
        size: number of sequences. Training goes through as many epochs as this needs; the other
            splits end with their text.
        seed: of the order of the sequences.
        options: fields of `LanguageOptions`.

    Attributes:
        num_sequences: number of different sequences in this split: one epoch.
        packed: the tokenized corpus.
    """

    name: ClassVar[str] = "language"
    version: ClassVar[int] = 1
    Options: ClassVar[type] = LanguageOptions

    def __init__(
        self, split: str = "train", size: int = 1000, seed: int = 0, **options: Any
    ) -> None:
        if split not in SPLIT_PERCENTILES:
            raise ValueError(f"split: got {split!r}, allowed are {', '.join(SPLIT_PERCENTILES)}")
        if size < 1:
            raise ValueError(f"size: got {size}, expected at least 1 sequence")
        self.split, self.size, self.seed = split, size, seed
        self.options = build(f"task {self.name!r}", LanguageOptions, options)
        text = self.options.text
        sources = [text] if isinstance(text, str) else text
        self.packed: PackedCorpus = pack(sources, self.options.tokenizer or BYTES)
        self._check_tokenizer(sources)
        self._tokens = self.packed.tokens(split)
        self.num_sequences = len(self._tokens) // self.length
        if self.num_sequences == 0:
            raise ValueError(
                f"text: the {split!r} split has {len(self._tokens)} tokens, fewer than one "
                f"sequence of {self.length}; give more text, a smaller length or another tokenizer"
            )
        if split != "train":
            self.size = min(size, self.num_sequences)
        self._orders: dict[int, Array] = {}

    def _check_tokenizer(self, sources: list[str]) -> None:
        wanted, found = self.options.tokenizer, self.packed.manifest["tokenizer"]
        if wanted not in (None, found) and sources[0].startswith(PACKED):
            raise ValueError(
                f"tokenizer: got {wanted!r}, but {sources[0]} was packed with {found!r}; leave the "
                "tokenizer out, or pack the text with it"
            )

    @property
    def vocab_size(self) -> int:
        """Return the vocabulary size."""
        return int(self.packed.manifest["vocab_size"])

    @property
    def length(self) -> int:
        """Return the sequence length in tokens."""
        return self.options.length

    def _sequence(self, epoch: int, place: int) -> int:
        """Return which sequence has a place in the order of an epoch."""
        key = hash_key(self.name, self.version, self.seed, epoch)
        if self.num_sequences > SORTED:
            return permuted(place, self.num_sequences, key)
        if epoch not in self._orders:  # only the last epoch's is kept
            words = splitmix64(np.arange(self.num_sequences, dtype=np.uint64) ^ key)
            self._orders = {epoch: np.argsort(words, kind="stable")}
        return int(self._orders[epoch][place])

    def examples(self, indices: Any) -> Examples:
        """Return a batch of sequences by their indices, each field [B, T].

        Every token is a label. There is no ground truth of what to attend to.
        """
        rows = []
        for i in np.asarray(indices, dtype=np.int64):
            epoch, place = divmod(int(i), self.num_sequences)
            start = self._sequence(epoch, place) * self.length
            rows.append(self._tokens[start : start + self.length])
        tokens = np.stack(rows).astype(np.int64)
        roles = np.full_like(tokens, Role.HAYSTACK)
        roles[:, 0] = Role.SINK
        return Examples(tokens, tokens.copy(), roles, np.full_like(tokens, -1))

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if not 0 <= index < self.size:
            raise IndexError(f"{self.name}: has {self.size} sequences, got index {index}")
        return unbatch(self.examples([index]))[0]

    def __getitems__(self, indices: list[int]) -> list[dict[str, torch.Tensor]]:
        return unbatch(self.examples(indices))
