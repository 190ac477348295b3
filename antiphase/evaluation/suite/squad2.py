r"""SQuAD 2.0: answer from a passage, or say that it has no answer.

    {"prompt": "<two demonstrations> Passage: .. Question: Who ..?",
     "answers": ["Anna Berg", ..], "answerable": true}

Two demonstrations, written for this purpose, show both kinds of answer. Beside the greedy answer
the log-likelihood of the refusal is taken: with a threshold on it, models can be compared at equal
refusal rates, so that caution does not pass for knowledge.
"""

import json
from typing import Any

import numpy as np
from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask

from antiphase.evaluation.benchmark_data import read_benchmark
from antiphase.evaluation.suite.answers import exact, f1, normalised
from antiphase.evaluation.suite.splits import Results, Splits, as_splits

REFUSAL = "unanswerable"
_PASSAGE = "The mill by the river was built by Anna Berg in 1820 and burned down in 1904."
INSTRUCTION = f"""Answer each question in a few words of its passage. If the passage does not \
contain the answer, write {REFUSAL}.

Passage: {_PASSAGE}
Question: Who built the mill?
Answer: Anna Berg

Passage: {_PASSAGE}
Question: How much did the mill cost?
Answer: {REFUSAL}

"""


def documents(**_: Any) -> Splits:
    """Return the questions, in an order that mixes articles and both kinds."""
    articles = json.loads(read_benchmark("squad2"))["data"]
    items = [
        {
            "prompt": f"{INSTRUCTION}Passage: {paragraph['context']}\n"
            f"Question: {question['question']}\n",
            "answers": sorted({answer["text"] for answer in question["answers"]}),
            "answerable": not question["is_impossible"],
        }
        for article in articles
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]
    rng = np.random.default_rng(0)
    kinds = [
        rng.permutation([i for i, x in enumerate(items) if x["answerable"] == k]).tolist()
        for k in (True, False)
    ]
    paired = [i for pair in zip(*kinds, strict=False) for i in pair]
    return as_splits(items[i] for i in paired)


class SQuAD2(ConfigurableTask):
    """Two requests per question: the greedy answer, and the refusal's log-likelihood."""

    def __init__(self, config: dict[str, Any] | None = None) -> None:
        super().__init__(config={k: v for k, v in (config or {}).items() if k != "class"})

    def construct_requests(self, doc: dict[str, Any], ctx: Any, **kwargs: Any) -> list[Any]:
        """Return the requests of a question."""
        answer = super().construct_requests(doc, ctx, **kwargs)
        refusal = Instance(
            request_type="loglikelihood",
            doc=doc,
            arguments=(ctx, f" {REFUSAL}"),
            idx=1,
            metadata=kwargs["metadata"],
        )
        return [answer, refusal]


def score_answer(item: dict[str, Any], results: Results) -> dict[str, Any]:
    """Score a question: what a kind of question has no meaning for is absent."""
    text, (loglikelihood, _) = results
    refused = is_refusal(text)
    scores = {"refusal_loglikelihood": loglikelihood, "answerable": float(item["answerable"])}
    if not item["answerable"]:
        return scores | {"hallucinated": float(not refused)}
    return scores | {
        "exact": exact(text, item["answers"]),
        "f1": f1(text, item["answers"]),
        "refused": float(refused),
    }


def is_refusal(text: str) -> bool:
    """Tell whether an answer refuses: by the demonstrated word, or by being empty."""
    words = normalised(text)
    return not words or words.startswith(REFUSAL)
