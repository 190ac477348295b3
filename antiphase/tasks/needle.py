"""Needle in a haystack: retrieve the value that followed a key.

    <bos> f3 f1  key2 val7  f0 f9  decoy5 val1  f4 f4  ..  key2 val7
                 needle            distractor              query, target

A sequence is a row of two-token slots. N needles (key, value) are placed at random, or the queried
one at a chosen depth. Of the other slots, a fraction `noise` holds distractors: pairs of the same
form with other keys. The rest is filler. R needles are queried at the end. With `repeats`, needles
occur again within the haystack, and every repetition is a query, too: many more targets per
sequence, for training. `order` permutes the slots of the same sequence, to measure how much the
order of its pairs matters.
"""

from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np

from antiphase.tasks.base import Array, Examples, Role, numbered
from antiphase.tasks.counter_rng import CounterRNG
from antiphase.tasks.key_value import KeyValueOptions, KeyValueTask

DISTRACTOR, FILLER = -1, -2  # what a slot holds, if not the needle of a number


@dataclass(frozen=True)
class NeedleOptions(KeyValueOptions):
    """The needles, queries and distractors of a sequence.

    Attributes:
        decoys: number of keys that only distractors have.
        near: fraction of the distractors whose key is one that needles could have, but that no
            needle of this sequence has: they differ from a needle in nothing but which key it is.
        needles: number of needles per sequence.
        queried: number of needles that are queried at the end.
        repeats: how often each needle occurs again, as a query.
        noise: fraction of the remaining slots that hold distractors.
        depth: position of the first queried needle, 0 (start) to 1 (end); None for random.
        order: which permutation of the slots; 0 for that which was drawn.
    """

    decoys: int = 16
    near: float = 0.0
    needles: int = 4
    queried: int = 1
    repeats: int = 0
    noise: float = 0.5
    depth: float | None = None
    order: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("noise", "near", "depth"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise ValueError(f"{name}: got {value}, expected 0 to 1")
        if not 1 <= self.queried <= self.needles:
            raise ValueError(f"queried: got {self.queried}, expected 1 to needles={self.needles}")
        self.check_keys()
        if self.depth is not None and self.repeats:
            raise ValueError(
                "depth: places the needle, and repeats scatter it; use one of the two options"
            )
        if self.order and (self.repeats or self.depth is not None):
            raise ValueError(
                f"order: got {self.order}, but other orders of a sequence need repeats=0 (a "
                "repeated needle is a query) and no depth (which places the needle)"
            )
        if self.needles * (1 + self.repeats) > self.slots:
            raise ValueError(
                f"length: {self.length} tokens have {self.slots} slots, fewer than the "
                f"{self.needles * (1 + self.repeats)} of needles={self.needles} with "
                f"repeats={self.repeats}; raise length"
            )

    def check_keys(self) -> None:
        """Raise if there are too few keys for needles and distractors."""
        if self.needles > self.keys - (self.near > 0):
            raise ValueError(
                f"needles: got {self.needles} of keys={self.keys}; each needle needs its own key, "
                "and near distractors need one more; raise keys"
            )
        if self.near < 1 and self.decoys < 1:
            raise ValueError(
                f"decoys: got {self.decoys} with near={self.near}; distractors that are not near "
                "need at least 1"
            )

    @property
    def slot_tokens(self) -> int:
        """Return the tokens of a needle: key and value."""
        return 2

    @property
    def slots(self) -> int:
        """Return the number of slots in the haystack, each as long as a needle."""
        return (self.length - 1) // self.slot_tokens - self.queried


class Needle(KeyValueTask):
    """Retrieval of a value by its key."""

    name = "needle"
    Options = NeedleOptions
    held_back_keys: ClassVar[int] = 0  # keys that no sequence holds: the last of its permutation
    # the same needles are drawn, whatever keys the distractors have and in whatever order
    unkeyed_options = ("near", "order")

    def build_vocabulary(self) -> list[str]:
        tokens = super().build_vocabulary()
        self.first_decoy = len(tokens)
        return tokens + numbered("decoy", self.options.decoys)

    def generate(self, rng: CounterRNG) -> Examples:
        options, B = self.options, rng.size
        S, N = options.slots, options.needles
        rows = np.arange(B)[:, None]
        # the first N keys of each permutation are the needles', the others may be distractors'
        keys = rng.permutations("keys", options.keys)
        values = rng.integers("values", N, options.values)
        content = self._slot_contents(rng)  # [B, S]
        pairs = np.empty((B, S, 2), dtype=np.int64)
        fillers = rng.integers("fillers", 2 * S, options.fillers).reshape(B, S, 2)
        pairs[:] = self.first_filler + fillers
        distractor_keys = self.first_decoy + rng.integers("noise keys", S, max(options.decoys, 1))
        if options.near:
            unused = options.keys - N - self.held_back_keys
            near_keys = keys[rows, N + rng.integers("near keys", S, unused)]
            is_near = rng.uniform("near", S) < options.near
            distractor_keys = np.where(is_near, self.first_key + near_keys, distractor_keys)
        distractor_values = self.first_value + rng.integers("noise values", S, options.values)
        distractor = content == DISTRACTOR
        pairs[..., 0] = np.where(distractor, distractor_keys, pairs[..., 0])
        pairs[..., 1] = np.where(distractor, distractor_values, pairs[..., 1])
        number = np.maximum(content, 0)
        pairs[..., 0] = np.where(content >= 0, self.first_key + keys[rows, number], pairs[..., 0])
        pairs[..., 1] = np.where(
            content >= 0, self.first_value + values[rows, number], pairs[..., 1]
        )
        queried = self._queried_needles(rng)  # [B, R]
        queries = np.stack(
            [self.first_key + keys[rows, queried], self.first_value + values[rows, queried]],
            axis=-1,
        )  # [B, R, 2]
        return self._assemble(content, queried, pairs, queries)

    def examples(self, indices: Any) -> Examples:
        """Return a batch of examples, their slots in the chosen order.

        Every order of a sequence is in the split of the drawn one.
        """
        out, options = super().examples(indices), self.options
        if options.order:
            wanted = np.asarray(indices, dtype=np.int64)
            rng = CounterRNG(self._key, wanted, np.zeros_like(wanted))
            S, w = options.slots, options.slot_tokens
            order = rng.permutations(f"order {options.order}", S)  # [B, S]
            start = options.length - w * (options.queried + S)
            moved = (start + w * order[..., None] + np.arange(w)).reshape(len(wanted), -1)
            for field in fields(Examples):
                values = getattr(out, field.name)
                values[:, start : start + w * S] = np.take_along_axis(values, moved, axis=1)
        return out

    def _slot_contents(self, rng: CounterRNG) -> Array:
        """Return what each slot holds: a needle's number, DISTRACTOR or FILLER, [B, S]."""
        options = self.options
        S, M = options.slots, options.needles * (1 + options.repeats)
        priority = rng.uniform("slots", S)
        if options.depth is not None:  # the slot at that depth comes first, for needle 0
            priority[:, round(options.depth * (S - 1))] = -1.0
        order = np.argsort(priority, axis=1)
        ordered = np.full(S, FILLER, dtype=np.int64)
        ordered[:M] = np.arange(M) % options.needles
        ordered[M : M + round(options.noise * (S - M))] = DISTRACTOR
        content = np.empty((rng.size, S), dtype=np.int64)
        np.put_along_axis(content, order, np.broadcast_to(ordered, content.shape), axis=1)
        return content

    def _queried_needles(self, rng: CounterRNG) -> Array:
        """Return the needles queried at the end, [B, R]; the one at a chosen depth is first."""
        priority = rng.uniform("asked", self.options.needles)
        if self.options.depth is not None:
            priority[:, 0] = -1.0
        return np.argsort(priority, axis=1)[:, : self.options.queried]

    def _assemble(self, content: Array, queried: Array, slots: Array, queries: Array) -> Examples:
        """Return the sequences; positions left over stay filler, after the first token.

        Args:
            content: what each slot holds, [B, S].
            queried: the needles of the queries at the end, [B, R].
            slots: tokens of each slot, [B, S, w]: a key of w - 1 tokens and a value, or filler.
            queries: tokens of each query and its target, [B, R, w].
        """
        options, (B, S), w = self.options, content.shape, slots.shape[-1]
        out = Examples.blank(B, options.length, self.first_filler)
        stop = options.length - w * options.queried
        start = stop - w * S
        out.tokens[:, start:stop] = slots.reshape(B, -1)
        out.tokens[:, stop:] = queries.reshape(B, -1)
        first = content >= 0  # the first occurrence is the needle, later ones are queries
        for needle in range(options.needles if options.repeats else 0):
            here = content == needle
            first &= ~here | (np.cumsum(here, axis=1) == 1)
        conditions = [first, (content >= 0) & ~first, content == DISTRACTOR]
        key_role = np.select(conditions, [Role.KEY, Role.QUERY, Role.NOISE], Role.HAYSTACK)
        value_role = np.select(conditions, [Role.ANSWER, Role.TARGET, Role.NOISE], Role.HAYSTACK)
        roles = np.stack([key_role] * (w - 1) + [value_role], axis=-1)
        out.roles[:, start:stop] = roles.reshape(B, -1)
        out.roles[:, stop:] = Role.QUERY
        out.roles[:, stop + w - 1 :: w] = Role.TARGET
        out.needle[:, start:stop] = np.repeat(np.maximum(content, -1), w, axis=1)
        out.needle[:, stop:] = np.repeat(queried, w, axis=1)
        out.label_targets()
        return out
