r"""Items from files of ready requests: LAMBADA, GSM8K and the multiple-choice sets.

{"prompt": "Question: Which ..?\nAnswer:", "choices": ["food", ..], "gold": 0}
"""

import gzip
import json
from collections.abc import Iterator
from functools import partial
from typing import Any

from antiphase.evaluation.benchmark_data import read_benchmark
from antiphase.evaluation.suite.splits import Results, Splits, as_splits, shuffled


def multiple_choice(name: str, **_: Any) -> Splits:
    """Return the questions of a multiple-choice set, without demonstrations.

    Args:
        name: hellaswag, arc_easy, arc_challenge or piqa.
    """
    docs = [request["doc"] for request in shuffled(_first_requests(name))]
    return as_splits(
        {"prompt": doc["query"], "choices": doc["choices"], "gold": int(doc["gold"])}
        for doc in docs
    )


hellaswag = partial(multiple_choice, "hellaswag")
arc_easy = partial(multiple_choice, "arc_easy")
arc_challenge = partial(multiple_choice, "arc_challenge")
piqa = partial(multiple_choice, "piqa")


def lambada(**_: Any) -> Splits:
    """Return the passages of LAMBADA; the last word is the answer."""
    return as_splits(
        {"prompt": r["request"]["context"], "answer": r["request"]["continuation"]}
        for r in shuffled(_first_requests("lambada"))
    )


def gsm8k(**_: Any) -> Splits:
    """Return the questions of GSM8K with their worked answers, without demonstrations."""
    return as_splits(
        {
            "prompt": f"Question: {doc['question']}\nAnswer:",
            "answer": f" {doc['choices'][0]}",
        }
        for doc in (r["doc"] for r in shuffled(_first_requests("gsm8k")))
    )


def score_answer(item: dict[str, Any], results: Results) -> dict[str, Any]:
    """Score a gold answer: is it the greedy continuation, and its bits per byte."""
    (loglikelihood, greedy) = results[0]
    size = len(item["answer"].encode())
    return {"acc": float(greedy), "bits_per_byte": (loglikelihood, size)}


def score_bits(item: dict[str, Any], results: Results) -> dict[str, Any]:
    """Score a gold answer by its bits per byte alone."""
    return {"bits_per_byte": score_answer(item, results)["bits_per_byte"]}


def _first_requests(name: str) -> Iterator[dict[str, Any]]:
    """Yield the first request of each document: its others are of the other choices."""
    seen = set()
    for line in gzip.decompress(read_benchmark(name)).decode().splitlines():
        request = json.loads(line)
        document = json.dumps(request["doc"])  # their numbers differ between kinds of requests
        if document not in seen:
            seen.add(document)
            yield request
