"""Needles in words in a real haystack, by depth and length.

    {"prompt": "<sentences of essays> .. The special number for Oslo is 417. .. <sentences>

      Question: What is the special number for Oslo?",
     "answer_start": "Answer: The special number for Oslo is", "answer": " 417",
     "words": 400, "depth": 0.25}

The needles of other cities are between the sentences, too, so that the model must read the city.
Lengths are counted in words, so that models with different tokenizers get the same items.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from antiphase.evaluation.suite.essays import sentences
from antiphase.evaluation.suite.splits import Results, Splits, as_splits
from antiphase.tasks.word_needles import CITIES, DEPTHS

LENGTHS = (100, 200, 400, 800)
NEEDLES = 4
ITEMS = 1000


def documents(lengths: Sequence[int] = LENGTHS, needles: int = NEEDLES, **_: Any) -> Splits:
    """Return the items; consecutive ones go through all depths of all lengths.

    Args:
        lengths: of the haystack, in words.
        needles: number of needles; one is queried.
    """
    cells = [(length, depth) for length in lengths for depth in DEPTHS]
    return as_splits(needle_item(i, *cells[i % len(cells)], needles) for i in range(ITEMS))


def needle_item(i: int, words: int, depth: float, needles: int = NEEDLES) -> dict[str, Any]:
    """Return item i.

    Args:
        i: number of the item, the seed of its random choices.
        words: length of the haystack.
        depth: of the queried needle, 0 at the start of the haystack.
        needles: number of needles.
    """
    rng = np.random.default_rng([i, words])
    cities = [CITIES[c] for c in rng.permutation(len(CITIES))[:needles]]
    numbers = [int(n) for n in rng.permutation(900)[:needles] + 100]
    text = _excerpt(words, rng)
    places = [depth * len(text), *rng.uniform(0, len(text), needles - 1)]
    facts = [f"The special number for {c} is {n}." for c, n in zip(cities, numbers, strict=True)]
    for place, fact in sorted(zip(places, facts, strict=True), reverse=True):
        text.insert(round(place), fact)
    question = f"Question: What is the special number for {cities[0]}?"
    return {
        "prompt": f"{' '.join(text)}\n\n{question}\n",
        "answer_start": f"Answer: The special number for {cities[0]} is",
        "answer": f" {numbers[0]}",
        "words": words,
        "depth": depth,
    }


def score_needle(item: dict[str, Any], results: Results) -> dict[str, Any]:
    """Score an item: found if the number is the greedy continuation."""
    loglikelihood, greedy = results[0]
    return {"found": float(greedy), "loglikelihood": loglikelihood}


def _excerpt(words: int, rng: np.random.Generator) -> list[str]:
    """Return consecutive sentences, at least one, up to a number of words."""
    source = sentences()
    start = int(rng.integers(len(source)))
    excerpt: list[str] = []
    while True:
        sentence = source[(start + len(excerpt)) % len(source)]
        words -= len(sentence.split())
        if excerpt and words < 0:
            return excerpt
        excerpt.append(sentence)
