"""Essays as text: passages for bits per byte, and the sentences of a haystack."""

import json
import re
from functools import lru_cache
from typing import Any

from antiphase.evaluation.benchmark_data import read_benchmark
from antiphase.evaluation.suite.splits import Results, Splits, as_splits, shuffled

PASSAGE_WORDS = 128
_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"'(])|(?<=[a-z][.!?])(?=[A-Z])")  # some lack the space


def passages(words: int = PASSAGE_WORDS, **_: Any) -> Splits:
    """Return passages of consecutive whole sentences.

    Args:
        words: the least number of words of a passage.
    """
    items: list[dict[str, Any]] = []
    passage: list[str] = []
    for sentence in sentences():
        passage.append(sentence)
        if sum(len(s.split()) for s in passage) >= words:
            items.append({"text": " ".join(passage)})
            passage = []
    return as_splits(shuffled(items))


@lru_cache(maxsize=1)
def sentences() -> tuple[str, ...]:
    """Return all sentences of the essays, in order, with single spaces between words."""
    text = json.loads(read_benchmark("essays"))["text"]
    found = (" ".join(sentence.split()) for sentence in _END.split(text))
    return tuple(sentence for sentence in found if sentence)


def score_passage(item: dict[str, Any], results: Results) -> dict[str, Any]:
    """Score a passage by its bits per byte."""
    return {"bits_per_byte": (results[0], len(item["text"].encode()))}
