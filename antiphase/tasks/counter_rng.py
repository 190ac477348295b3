"""A counter-based random number generator: number j of example i depends on (key, i, j) alone.

Counters pass through a 64-bit mixing function. Any batch of examples is therefore generated in one
vectorised call, in any order and by any process, with the same result.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def hash_key(*parts: object) -> np.uint64:
    """Return a 64-bit key of values whose `repr` is the same on every machine."""
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return np.uint64(int.from_bytes(digest[:8], "little"))


def splitmix64(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix 64-bit words (the finaliser of SplitMix64)."""
    with np.errstate(over="ignore"):
        words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def permuted(place: int, n: int, key: np.uint64) -> int:
    """Return what is at a place of a random permutation of 0..n-1, without computing the others.

    A Feistel network permutes the numbers of 2b bits, the fewest that hold n; a result that is not
    below n is permuted again until it is.

    Args:
        place: 0 <= place < n.
        n: length of the permutation.
        key: from `hash_key`; another key gives another permutation.
    """
    bits = max(1, ((n - 1).bit_length() + 1) // 2)
    mask = (1 << bits) - 1
    while True:
        left, right = place >> bits, place & mask
        for turn in range(4):
            word = np.array([right | turn << 56], dtype=np.uint64) ^ key
            left, right = right, left ^ (int(splitmix64(word)[0]) & mask)
        place = left << bits | right
        if place < n:
            return place


class CounterRNG:
    """The random numbers of a batch of examples: one stream per name, one row per example.

    The name of a stream is part of its seed: a renamed stream changes every example.

    Args:
        key: what tells this dataset from others, from `hash_key`.
        indices: the examples' indices, [B].
        attempts: 0 at first; another value gives other numbers to the same example. One for all
            examples, or one for each, [B].
    """

    def __init__(
        self, key: np.uint64, indices: NDArray[np.int64], attempts: NDArray[np.int64] | int = 0
    ) -> None:
        self.key, self.size = key, len(indices)
        with np.errstate(over="ignore"):
            counters = indices.astype(np.uint64) * _GOLDEN + np.asarray(attempts, np.uint64)
            self._rows = splitmix64(splitmix64(counters) ^ key)[:, None]

    def uniform(self, stream: str, n: int) -> NDArray[np.float64]:
        """Return uniform numbers in [0, 1), [B, n]."""
        with np.errstate(over="ignore"):
            columns = np.arange(1, n + 1, dtype=np.uint64) * _GOLDEN ^ hash_key(stream)
            words = splitmix64(self._rows + splitmix64(columns))
        return (words >> np.uint64(11)) * 2.0**-53

    def integers(self, stream: str, n: int, below: int) -> NDArray[np.int64]:
        """Return uniform integers in [0, below), [B, n]."""
        return (self.uniform(stream, n) * below).astype(np.int64)

    def permutations(self, stream: str, n: int) -> NDArray[np.int64]:
        """Return one permutation of 0..n-1 per example, [B, n]."""
        return np.argsort(self.uniform(stream, n), axis=1)


def row_hashes(rows: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return one 64-bit hash per row, [B, n] -> [B]; equal rows have equal hashes."""
    with np.errstate(over="ignore"):
        weights = splitmix64(np.arange(1, rows.shape[1] + 1, dtype=np.uint64) * _GOLDEN)
        return splitmix64((rows.astype(np.uint64) * weights).sum(axis=1, dtype=np.uint64))
