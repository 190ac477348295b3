"""Needles in a haystack: find the value that stood beside a key.

    <bos> f3 f1  key2 val7  f0 f9  key5 val1  f4 f4  ..  key2 val7
                 needle            noise                 query, answer

A text is a row of two-token slots. N needles (key, value) stand at random slots or the queried one
at a chosen depth; of the other slots a share `noise` looks like needles, with other keys; the rest
is filler. R needles are asked for at the end. With `repeats`, needles come again within the
haystack, and every repeat is a question, too: many more targets a text, for training.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from antiphase.tasks.base import Array, Examples, Role, named
from antiphase.tasks.counter_rng import Draw
from antiphase.tasks.key_value import PairOptions, PairTask


@dataclass(frozen=True)
class NeedleOptions(PairOptions):
    """`needles` of `keys` and `values`; `queried` at the end; `noise` and `depth` in [0, 1].

    Noise has keys of its own, the `decoys`; a share `near` of it takes instead the keys that the
    needles of the text have left: it resembles a needle in all but which key it is.
    """

    decoys: int = 16
    near: float = 0.0
    needles: int = 4
    queried: int = 1
    repeats: int = 0
    noise: float = 0.5
    depth: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("noise", "near", "depth"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise ValueError(f"{name}: got {value}, expected 0 to 1")
        if not 1 <= self.queried <= self.needles:
            raise ValueError(f"queried: got {self.queried}, expected 1 to needles={self.needles}")
        if self.needles > self.keys - (self.near > 0):
            raise ValueError(
                f"needles: got {self.needles} of keys={self.keys}; there must be as many keys, and "
                "with near noise one more for it"
            )
        if self.near < 1 and self.decoys < 1:
            raise ValueError(
                f"decoys: got {self.decoys} with near={self.near}; noise that is not near needs one"
            )
        if self.depth is not None and self.repeats:
            raise ValueError("depth: places the needle, and repeats scatter it; use one of them")
        if self.needles * (1 + self.repeats) > self.slots:
            raise ValueError(
                f"length: {self.length} tokens have {self.slots} slots, fewer than the "
                f"{self.needles * (1 + self.repeats)} of needles={self.needles} with "
                f"repeats={self.repeats}; raise length"
            )

    @property
    def slots(self) -> int:
        """Return the two-token slots of the haystack."""
        return (self.length - 1) // 2 - self.queried


class Needle(PairTask):
    """Retrieval of a value by its key."""

    name = "needle"
    Options = NeedleOptions
    kept_out: ClassVar[int] = 0  # keys that no text holds, the last in its order of keys
    arrangement = ("near",)  # draws the same needles, whatever keys the noise has

    def vocabulary(self) -> list[str]:
        words = super().vocabulary()
        self.decoy = len(words)
        return words + named("decoy", self.options.decoys)

    def draw(self, random: Draw) -> Examples:
        o, B = self.options, random.size
        S, N, M = o.slots, o.needles, o.needles * (1 + o.repeats)
        rows = np.arange(B)[:, None]
        keys = random.permutations("keys", o.keys)  # the first N are needles, the others noise
        values = random.integers("values", N, o.values)
        kind = self._kinds(random, S, M)  # [B, S]: needle number, -1 noise, -2 filler
        pairs = np.empty((B, S, 2), dtype=np.int64)
        pairs[:] = self.filler + random.integers("fillers", 2 * S, o.fillers).reshape(B, S, 2)
        noise_keys = self.decoy + random.integers("noise keys", S, max(o.decoys, 1))
        if o.near:
            left = o.keys - N - self.kept_out
            near = self.key + keys[rows, N + random.integers("near keys", S, left)]
            noise_keys = np.where(random.uniform("near", S) < o.near, near, noise_keys)
        pairs[..., 0] = np.where(kind == -1, noise_keys, pairs[..., 0])
        noise_values = self.value + random.integers("noise values", S, o.values)
        pairs[..., 1] = np.where(kind == -1, noise_values, pairs[..., 1])
        of = np.maximum(kind, 0)
        pairs[..., 0] = np.where(kind >= 0, self.key + keys[rows, of], pairs[..., 0])
        pairs[..., 1] = np.where(kind >= 0, self.value + values[rows, of], pairs[..., 1])

        asked = self._asked(random, N)  # [B, R]
        ends = np.stack([self.key + keys[rows, asked], self.value + values[rows, asked]], axis=-1)
        return self._write(kind, asked, pairs, ends)

    def _kinds(self, random: Draw, S: int, M: int) -> Array:
        """Return what stands in each slot: a needle's number, -1 for noise, -2 for filler."""
        o = self.options
        u = random.uniform("slots", S)
        if o.depth is not None:  # the slot at that depth comes first, for needle 0
            u[:, round(o.depth * (S - 1))] = -1.0
        order = np.argsort(u, axis=1)
        place = np.full(S, -2, dtype=np.int64)
        place[:M] = np.arange(M) % o.needles
        place[M : M + round(o.noise * (S - M))] = -1
        kind = np.empty((random.size, S), dtype=np.int64)
        np.put_along_axis(kind, order, np.broadcast_to(place, kind.shape), axis=1)
        return kind

    def _asked(self, random: Draw, N: int) -> Array:
        """Return the needles asked for at the end; the one at a chosen depth comes first."""
        u = random.uniform("asked", N)
        if self.options.depth is not None:
            u[:, 0] = -1.0
        return np.argsort(u, axis=1)[:, : self.options.queried]

    def _write(self, kind: Array, asked: Array, pairs: Array, ends: Array) -> Examples:
        """Return the texts: what is left over stands as filler after the first token."""
        o, (B, S) = self.options, kind.shape
        out = Examples.blank(B, o.length, self.filler)
        start, stop = o.length - 2 * (S + o.queried), o.length - 2 * o.queried
        out.tokens[:, start:stop] = pairs.reshape(B, -1)
        out.tokens[:, stop:] = ends.reshape(B, -1)
        first = kind >= 0  # a needle's first place is the needle, the later ones ask
        for needle in range(o.needles if o.repeats else 0):
            here = kind == needle
            first &= ~here | (np.cumsum(here, axis=1) == 1)
        again = (kind >= 0) & ~first
        key_role = np.select([first, again, kind == -1], [Role.KEY, Role.QUERY, Role.NOISE], 2)
        value_role = np.select(
            [first, again, kind == -1], [Role.ANSWER, Role.TARGET, Role.NOISE], 2
        )
        out.roles[:, start:stop] = np.stack([key_role, value_role], axis=-1).reshape(B, -1)
        out.roles[:, stop::2], out.roles[:, stop + 1 :: 2] = Role.QUERY, Role.TARGET
        out.needle[:, start:stop] = np.repeat(np.maximum(kind, -1), 2, axis=1)
        out.needle[:, stop:] = np.repeat(asked, 2, axis=1)
        out.ask()
        return out
