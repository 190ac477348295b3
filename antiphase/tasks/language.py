"""Real text: predict each next token, of files or of Python's own standard library.

    def  fold er ( path ) :  return  path .parent ..

Texts of `length` tokens are cut from the packed corpus and come in a random order that each epoch
draws anew; documents are parted by the end token, and a text may span several.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch.utils.data import Dataset

from antiphase.options import build
from antiphase.tasks.base import Array, Examples, Role, rows_of
from antiphase.tasks.counter_rng import key_of, mix
from antiphase.tasks.text.corpus import BUILTIN
from antiphase.tasks.text.packing import SHARES, PackedText, pack
from antiphase.tasks.text.tokenizer import BYTES


@dataclass(frozen=True)
class LanguageOptions:
    """`text` sources (files, globs, folders, `stdlib`, `datasets:NAME`), `tokenizer`, `length`."""

    length: int = 256
    text: list[str] | str = field(default_factory=lambda: [BUILTIN])
    tokenizer: str = BYTES

    def __post_init__(self) -> None:
        if self.length < 2:
            raise ValueError(f"length: got {self.length}, expected at least 2 tokens")


class Language(Dataset[dict[str, torch.Tensor]]):
    """Texts of a corpus, by number."""

    name: ClassVar[str] = "language"
    version: ClassVar[int] = 1
    Options: ClassVar[type] = LanguageOptions

    def __init__(
        self, split: str = "train", size: int = 1000, seed: int = 0, **options: Any
    ) -> None:
        if split not in SHARES:
            raise ValueError(f"split: got {split!r}, allowed are {', '.join(SHARES)}")
        if size < 1:
            raise ValueError(f"size: got {size}, expected at least 1 text")
        self.split, self.size, self.seed = split, size, seed
        self.options = build(f"task {self.name!r}", LanguageOptions, options)
        text = self.options.text
        sources = [text] if isinstance(text, str) else text
        self.packed: PackedText = pack(sources, self.options.tokenizer)
        self._tokens = self.packed.tokens(split)
        self.texts = len(self._tokens) // self.length
        if self.texts == 0:
            raise ValueError(
                f"text: the {split!r} part has {len(self._tokens)} tokens, fewer than one text of "
                f"{self.length}; give more text, a smaller length or another tokenizer"
            )
        if split != "train":
            self.size = min(size, self.texts)
        self._orders: dict[int, Array] = {}

    @property
    def vocab_size(self) -> int:
        """Return the number of tokens."""
        return int(self.packed.manifest["vocab_size"])

    @property
    def length(self) -> int:
        """Return the tokens of a text."""
        return self.options.length

    def _order(self, epoch: int) -> Array:
        if epoch not in self._orders:
            key = key_of(self.name, self.version, self.seed, epoch)
            words = mix(np.arange(self.texts, dtype=np.uint64) ^ key)
            self._orders = {epoch: np.argsort(words, kind="stable")}  # one epoch is kept
        return self._orders[epoch]

    def examples(self, indices: Any) -> Examples:
        """Return the texts of those numbers."""
        rows = []
        for i in np.asarray(indices, dtype=np.int64):
            epoch, place = divmod(int(i), self.texts)
            start = int(self._order(epoch)[place]) * self.length
            rows.append(self._tokens[start : start + self.length])
        tokens = np.stack(rows).astype(np.int64)
        roles = np.full_like(tokens, Role.HAYSTACK)
        roles[:, 0] = Role.SINK
        return Examples(tokens, tokens.copy(), roles, np.full_like(tokens, -1))

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if not 0 <= index < self.size:
            raise IndexError(f"{self.name}: has {self.size} texts, asked for number {index}")
        return rows_of(self.examples([index]))[0]

    def __getitems__(self, indices: list[int]) -> list[dict[str, torch.Tensor]]:
        return rows_of(self.examples(indices))
