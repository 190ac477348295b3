"""Needles whose keys are several tokens that other needles and distractors share.

    <bos>  a3 b1 val7  a5 b1 val2  a3 b6 val4  f0 f9 f2  ..  a3 b1 val7
           needle      distractor  distractor  filler        query, target

The needle task with keys of `key_tokens` tokens; each place of a key has `keys` tokens of its own.
No single token identifies a needle: distractors have the same tokens in other combinations, and
attention that matches a part of the key goes to the wrong positions. A fraction `near` of the
distractors differs from a needle of the sequence in one token of the key; the others have keys at
random. With `mixed` the number of distractors varies from sequence to sequence: those with few of
them can be answered by a part of the key, and from these a model learns first.
"""

import string
from dataclasses import dataclass

import numpy as np

from antiphase.tasks.base import Array, Examples, numbered
from antiphase.tasks.counter_rng import CounterRNG
from antiphase.tasks.needle import DISTRACTOR, FILLER, Needle, NeedleOptions


@dataclass(frozen=True)
class CompositeNeedleOptions(NeedleOptions):
    """The options of the needle task, with other keys.

    Attributes:
        keys: number of different tokens at each place of a key.
        decoys: not used here: distractors consist of the same tokens as needles.
        near: fraction of the distractors that differ from a needle in one token of the key.
        key_tokens: tokens per key.
        mixed: each sequence draws the fraction of its distractors that are replaced by filler.
    """

    decoys: int = 0
    key_tokens: int = 2
    mixed: bool = False

    def check_keys(self) -> None:
        """Raise if there are too few keys for needles and distractors."""
        if not 2 <= self.key_tokens <= len(string.ascii_lowercase):
            raise ValueError(
                f"key_tokens: got {self.key_tokens}, expected 2 to {len(string.ascii_lowercase)}; "
                "keys of one token are the task 'needle'"
            )
        if self.keys < 2:
            raise ValueError(f"keys: got {self.keys}, expected at least 2 tokens at each place")
        if self.decoys:
            raise ValueError(
                f"decoys: got {self.decoys}, but distractors have the tokens of needles here; "
                "leave it out"
            )
        if self.needles >= self.keys**self.key_tokens:
            raise ValueError(
                f"needles: got {self.needles} of {self.keys**self.key_tokens} keys; each needle "
                "needs its own, and distractors need one more; raise keys"
            )

    @property
    def slot_tokens(self) -> int:
        """Return the tokens of a needle: key and value."""
        return self.key_tokens + 1


class CompositeNeedle(Needle):
    """Retrieval of a value by a key of several tokens."""

    name = "composite_needle"
    Options = CompositeNeedleOptions

    def build_vocabulary(self) -> list[str]:
        options = self.options
        places = string.ascii_lowercase[: options.key_tokens]
        keys = [token for place in places for token in numbered(place, options.keys)]
        fillers, values = numbered("f", options.fillers), numbered("val", options.values)
        self.first_filler = 2
        self.first_key = self.first_filler + len(fillers)
        self.first_value = self.first_key + len(keys)
        return ["<pad>", "<bos>", *fillers, *keys, *values]

    def generate(self, rng: CounterRNG) -> Examples:
        options, B = self.options, rng.size
        S, N, w = options.slots, options.needles, options.slot_tokens
        rows = np.arange(B)[:, None]
        # the first N of each permutation are the needles' keys, the others may be distractors'
        keys = rng.permutations("keys", options.keys**options.key_tokens)
        values = rng.integers("values", N, options.values)
        content = self._slot_contents(rng)  # [B, S]
        slots = self.first_filler + rng.integers("fillers", w * S, options.fillers)
        slots = slots.reshape(B, S, w)
        noise_values = rng.integers("noise values", S, options.values)
        distractors = self._slot_tokens(self._distractor_keys(rng, keys), noise_values)
        slots = np.where((content == DISTRACTOR)[..., None], distractors, slots)
        number = np.maximum(content, 0)
        needles = self._slot_tokens(keys[rows, number], values[rows, number])
        slots = np.where((content >= 0)[..., None], needles, slots)
        queried = self._queried_needles(rng)  # [B, R]
        queries = self._slot_tokens(keys[rows, queried], values[rows, queried])
        return self._assemble(content, queried, slots, queries)

    def _slot_contents(self, rng: CounterRNG) -> Array:
        content = super()._slot_contents(rng)
        if not self.options.mixed:
            return content
        replaced = rng.uniform("replaced", content.shape[1]) < rng.uniform("fraction replaced", 1)
        return np.where(replaced & (content == DISTRACTOR), FILLER, content)

    def _distractor_keys(self, rng: CounterRNG, keys: Array) -> Array:
        """Return a key for each slot that no needle of the sequence has, [B, S]."""
        options, S, N = self.options, self.options.slots, self.options.needles
        rows = np.arange(rng.size)[:, None]
        unused = keys[rows, N + rng.integers("noise keys", S, keys.shape[1] - N)]
        needle = keys[rows, rng.integers("near needle", S, N)]
        unit = options.keys ** rng.integers("near place", S, options.key_tokens)
        old = needle // unit % options.keys
        other = (old + 1 + rng.integers("near token", S, options.keys - 1)) % options.keys
        changed = needle + (other - old) * unit
        taken = (changed[..., None] == keys[:, None, :N]).any(-1)
        near = (rng.uniform("near", S) < options.near) & ~taken
        return np.where(near, changed, unused)

    def _slot_tokens(self, keys: Array, values: Array) -> Array:
        """Return the tokens of keys [B, n], given by number, and of values [B, n]: [B, n, w]."""
        n, places = self.options.keys, range(self.options.key_tokens)
        parts = [self.first_key + n * place + keys // n**place % n for place in places]
        return np.stack([*parts, self.first_value + values], axis=-1)
