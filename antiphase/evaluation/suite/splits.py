"""Items in the form that lm-evaluation-harness reads."""

from collections.abc import Iterable
from typing import Any

import numpy as np

Splits = dict[str, Any]
"""`{"test": datasets.Dataset}`."""
Results = list[Any]
"""What a model returned for the requests of an item: (log-likelihood, is greedy), or a text."""


def as_splits(items: Iterable[dict[str, Any]]) -> Splits:
    """Return items as the harness's test split; `id` is their position."""
    from datasets import Dataset

    return {"test": Dataset.from_list([{"id": i, **item} for i, item in enumerate(items)])}


def shuffled(items: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return items in a fixed random order, so that the first ones are a sample of all."""
    listed = list(items)
    return [listed[i] for i in np.random.default_rng(0).permutation(len(listed))]
