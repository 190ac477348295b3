"""Needles whose keys are several tokens that other needles and distractors share.

    <bos>  a3 b1 val7  a5 b1 val2  a19 b22 val4  f0 f9 f2  ..  a3 b1 val7
           needle      near        far           filler        query, target
                       distractor  distractor

The needle task with keys of `key_tokens` tokens; each place of a key has `keys` tokens of its own,
and `decoys` more that only distractors have. No single token identifies a needle: a near distractor
differs from a needle of the sequence in one token of the key, and attention that matches a part of
the key goes to the wrong positions. Far distractors consist of decoys.
"""

import string
from dataclasses import dataclass

import numpy as np

from antiphase.tasks.base import Array, Examples, numbered
from antiphase.tasks.counter_rng import CounterRNG
from antiphase.tasks.needle import DISTRACTOR, Needle, NeedleOptions


@dataclass(frozen=True)
class CompositeNeedleOptions(NeedleOptions):
    """The options of the needle task, with other keys.

    Attributes:
        keys: number of different tokens at each place of a needle's key.
        decoys: number of tokens at each place that only distractors have.
        near: fraction of the distractors that differ from a needle in one token of the key.
        key_tokens: tokens per key.
    """

    key_tokens: int = 2

    def check_keys(self) -> None:
        """Raise if there are too few keys for needles and distractors."""
        if not 2 <= self.key_tokens <= len(string.ascii_lowercase):
            raise ValueError(
                f"key_tokens: got {self.key_tokens}, expected 2 to {len(string.ascii_lowercase)}; "
                "keys of one token are the task 'needle'"
            )
        if self.keys < 2 or self.decoys < 1:
            raise ValueError(
                f"keys, decoys: got {self.keys}, {self.decoys}, expected at least 2 and 1 tokens "
                "at each place"
            )
        if self.needles >= self.keys**self.key_tokens:
            raise ValueError(
                f"needles: got {self.needles} of {self.keys**self.key_tokens} keys; each needle "
                "needs its own, and near distractors need one more; raise keys"
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
        self.place_size = options.keys + options.decoys  # tokens at one place of a key
        places = string.ascii_lowercase[: options.key_tokens]
        keys = [token for place in places for token in numbered(place, self.place_size)]
        fillers, values = numbered("f", options.fillers), numbered("val", options.values)
        self.first_filler = 2
        self.first_key = self.first_filler + len(fillers)
        self.first_value = self.first_key + len(keys)
        return ["<pad>", "<bos>", *fillers, *keys, *values]

    def generate(self, rng: CounterRNG) -> Examples:
        options, B = self.options, rng.size
        S, N, w = options.slots, options.needles, options.slot_tokens
        rows = np.arange(B)[:, None]
        numbers = rng.permutations("keys", options.keys**options.key_tokens)[:, :N]
        keys = self._digits(numbers)  # [B, N, w - 1]
        values = rng.integers("values", N, options.values)
        content = self._slot_contents(rng)  # [B, S]
        slots = self.first_filler + rng.integers("fillers", w * S, options.fillers)
        slots = slots.reshape(B, S, w)
        noise_values = rng.integers("noise values", S, options.values)
        distractors = self._tokens(self._distractor_keys(rng, numbers), noise_values)
        slots = np.where((content == DISTRACTOR)[..., None], distractors, slots)
        number = np.maximum(content, 0)
        needles = self._tokens(keys[rows, number], values[rows, number])
        slots = np.where((content >= 0)[..., None], needles, slots)
        queried = self._queried_needles(rng)  # [B, R]
        queries = self._tokens(keys[rows, queried], values[rows, queried])
        return self._assemble(content, queried, slots, queries)

    def _distractor_keys(self, rng: CounterRNG, numbers: Array) -> Array:
        """Return a key for each slot that no needle of the sequence has, [B, S, w - 1]."""
        options, S, places = self.options, self.options.slots, self.options.key_tokens
        decoys = rng.integers("decoys", places * S, options.decoys).reshape(rng.size, S, places)
        needle = np.take_along_axis(
            numbers, rng.integers("near needle", S, options.needles), axis=1
        )
        unit = options.keys ** rng.integers("near place", S, places)
        old = needle // unit % options.keys
        other = (old + 1 + rng.integers("near token", S, options.keys - 1)) % options.keys
        changed = needle + (other - old) * unit
        is_needle = (changed[..., None] == numbers[:, None]).any(-1)
        near = (rng.uniform("near", S) < options.near) & ~is_needle
        return np.where(near[..., None], self._digits(changed), options.keys + decoys)

    def _digits(self, numbers: Array) -> Array:
        """Return the tokens of keys given by number, one per place: [B, n] -> [B, n, w - 1]."""
        n = self.options.keys
        return np.stack([numbers // n**i % n for i in range(self.options.key_tokens)], axis=-1)

    def _tokens(self, keys: Array, values: Array) -> Array:
        """Return the token ids of keys [B, n, w - 1] and of values [B, n]: [B, n, w]."""
        places = self.place_size * np.arange(self.options.key_tokens)
        return np.concatenate(
            [self.first_key + places + keys, self.first_value + values[..., None]], axis=-1
        )
