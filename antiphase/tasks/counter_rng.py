"""Random numbers by address: the j-th number of example i depends on the key, i and j alone.

Counters go through a 64-bit mixing function, so that any batch of examples is made in one go, in
any order and by any process, and is always the same.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def key_of(*parts: object) -> np.uint64:
    """Return a 64-bit key of anything that prints the same everywhere."""
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return np.uint64(int.from_bytes(digest[:8], "little"))


def mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return well-mixed 64-bit words (the finaliser of SplitMix64)."""
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


class Draw:
    """The random numbers of a batch of examples: a stream for each name, a row for each example."""

    def __init__(self, key: np.uint64, indices: NDArray[np.int64], attempt: int = 0) -> None:
        self.key, self.size = key, len(indices)
        with np.errstate(over="ignore"):
            address = indices.astype(np.uint64) * _GOLDEN + np.uint64(attempt)
            self._rows = mix(mix(address) ^ key)[:, None]

    def uniform(self, name: str, n: int) -> NDArray[np.float64]:
        """Return numbers in [0, 1), [B, n]."""
        with np.errstate(over="ignore"):
            columns = np.arange(1, n + 1, dtype=np.uint64) * _GOLDEN ^ key_of(name)
            words = mix(self._rows + mix(columns))
        return (words >> np.uint64(11)) * 2.0**-53

    def integers(self, name: str, n: int, below: int) -> NDArray[np.int64]:
        """Return integers in [0, below), [B, n]."""
        return (self.uniform(name, n) * below).astype(np.int64)

    def permutations(self, name: str, n: int) -> NDArray[np.int64]:
        """Return an order of 0..n-1 for each example, [B, n]."""
        return np.argsort(self.uniform(name, n), axis=1)


def fingerprints(rows: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return a word for each row [B, n]; equal rows have equal words."""
    with np.errstate(over="ignore"):
        weights = mix(np.arange(1, rows.shape[1] + 1, dtype=np.uint64) * _GOLDEN)
        return mix((rows.astype(np.uint64) * weights).sum(axis=1, dtype=np.uint64))
