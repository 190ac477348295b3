"""Multi-query associative recall (MQAR): key-value pairs first, then their keys among filler.

<bos> key4 val2  key1 val9  key7 val3  f2 f5  key1 val9  f0 f1  key4 val2  ..
      pair       pair       pair              query, target     query, target
"""

from dataclasses import dataclass

import numpy as np

from antiphase.tasks.base import Examples, Role
from antiphase.tasks.counter_rng import CounterRNG
from antiphase.tasks.key_value import KeyValueOptions, KeyValueTask


@dataclass(frozen=True)
class RecallOptions(KeyValueOptions):
    """`pairs` per sequence; `queries` of them are queried.

    Each at most once; with `replacement` every query takes any pair, so that a model cannot find
    answers by ruling out what was answered before.
    """

    keys: int = 32
    values: int = 32
    pairs: int = 8
    queries: int = 8
    replacement: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        too_many = self.queries > self.pairs and not self.replacement
        if too_many or self.queries < 1 or not 1 <= self.pairs <= self.keys:
            raise ValueError(
                f"queries, pairs, keys: got {self.queries}, {self.pairs}, {self.keys}, expected "
                "1 <= queries <= pairs <= keys (with replacement, any number of queries)"
            )
        if self.slots < self.queries:
            raise ValueError(
                f"length: {self.length} tokens leave {max(self.slots, 0)} slots after {self.pairs} "
                f"pairs, fewer than queries={self.queries}; raise length"
            )

    @property
    def slots(self) -> int:
        """Return the number of two-token slots after the pairs."""
        return (self.length - 1) // 2 - self.pairs


class Recall(KeyValueTask):
    """Recall of values by their keys."""

    name = "recall"
    Options = RecallOptions
    unkeyed_options = ("replacement",)  # the same pairs are drawn, whichever are queried

    def generate(self, rng: CounterRNG) -> Examples:
        options, B = self.options, rng.size
        P, S, rows = options.pairs, options.slots, np.arange(B)[:, None]
        keys = self.first_key + rng.permutations("keys", options.keys)[:, :P]
        values = self.first_value + rng.integers("values", P, options.values)
        if options.replacement:
            queried = rng.integers("asked", options.queries, P)
        else:
            queried = rng.permutations("asked", P)[:, : options.queries]
        query_slots = rng.permutations("slots", S)[:, : options.queries]
        fillers = rng.integers("fillers", 2 * S, options.fillers).reshape(B, S, 2)
        slots = self.first_filler + fillers
        slots[rows, query_slots] = np.stack([keys[rows, queried], values[rows, queried]], axis=-1)
        out = Examples.blank(B, options.length, self.first_filler)
        start = options.length - 2 * (P + S)
        middle = start + 2 * P
        out.tokens[:, start:middle:2], out.tokens[:, start + 1 : middle : 2] = keys, values
        out.tokens[:, middle:] = slots.reshape(B, -1)
        out.roles[:, start:middle:2], out.roles[:, start + 1 : middle : 2] = Role.KEY, Role.ANSWER
        out.needle[:, start:middle] = np.repeat(np.arange(P), 2)
        position = middle + 2 * query_slots
        out.roles[rows, position], out.roles[rows, position + 1] = Role.QUERY, Role.TARGET
        out.needle[rows, position], out.needle[rows, position + 1] = queried, queried
        out.label_targets()
        return out
