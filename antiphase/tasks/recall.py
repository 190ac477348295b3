"""Associative recall of many pairs (MQAR): pairs first, then their keys again among filler.

<bos> key4 val2  key1 val9  key7 val3  f2 f5  key1 val9  f0 f1  key4 val2  ..
pairs                            ..     question          question
"""

from dataclasses import dataclass

import numpy as np

from antiphase.tasks.base import Examples, Role
from antiphase.tasks.counter_rng import Draw
from antiphase.tasks.key_value import PairOptions, PairTask


@dataclass(frozen=True)
class RecallOptions(PairOptions):
    """`pairs` of `keys` and `values`; `queries` of them come again, each once."""

    keys: int = 32
    values: int = 32
    pairs: int = 8
    queries: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.queries <= self.pairs <= self.keys:
            raise ValueError(
                f"queries, pairs, keys: got {self.queries}, {self.pairs}, {self.keys}, expected "
                "1 <= queries <= pairs <= keys"
            )
        if self.slots < self.queries:
            raise ValueError(
                f"length: {self.length} tokens leave {max(self.slots, 0)} slots after {self.pairs} "
                f"pairs, fewer than queries={self.queries}; raise length"
            )

    @property
    def slots(self) -> int:
        """Return the two-token slots after the pairs."""
        return (self.length - 1) // 2 - self.pairs


class Recall(PairTask):
    """Recall of values by their keys."""

    name = "recall"
    Options = RecallOptions

    def draw(self, random: Draw) -> Examples:
        o, B = self.options, random.size
        P, S, rows = o.pairs, o.slots, np.arange(random.size)[:, None]
        keys = self.key + random.permutations("keys", o.keys)[:, :P]
        values = self.value + random.integers("values", P, o.values)
        asked = random.permutations("asked", P)[:, : o.queries]
        where = random.permutations("slots", S)[:, : o.queries]
        slots = self.filler + random.integers("fillers", 2 * S, o.fillers).reshape(B, S, 2)
        slots[rows, where] = np.stack([keys[rows, asked], values[rows, asked]], axis=-1)
        out = Examples.blank(B, o.length, self.filler)
        start = o.length - 2 * (P + S)
        middle = start + 2 * P
        out.tokens[:, start:middle:2], out.tokens[:, start + 1 : middle : 2] = keys, values
        out.tokens[:, middle:] = slots.reshape(B, -1)
        out.roles[:, start:middle:2], out.roles[:, start + 1 : middle : 2] = Role.KEY, Role.ANSWER
        out.needle[:, start:middle] = np.repeat(np.arange(P), 2)
        at = middle + 2 * where
        out.roles[rows, at], out.roles[rows, at + 1] = Role.QUERY, Role.TARGET
        out.needle[rows, at], out.needle[rows, at + 1] = asked, asked
        out.ask()
        return out
