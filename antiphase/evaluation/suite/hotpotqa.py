r"""HotpotQA: a question over two paragraphs, with and without eight distractor paragraphs.

    {"prompt": "<paragraphs> Question: ..?", "answers": ["yes"], "cluster": "5a8b..",
     "condition": "distractors"}

Each question is asked twice: with all ten paragraphs in their order, and with the two that support
the answer alone. The difference is what the distractors cost.
"""

import json
from typing import Any

from antiphase.evaluation.benchmark_data import read_benchmark
from antiphase.evaluation.suite.answers import exact, f1
from antiphase.evaluation.suite.splits import Results, Splits, as_splits
from antiphase.tasks.text.prose import EVALUATED_QUESTIONS

CONDITIONS = ("distractors", "supporting")
INSTRUCTION = "Answer the question in a few words, from the paragraphs.\n\n"


def evaluated_questions() -> list[dict[str, Any]]:
    """Return the questions that are evaluated, as the file has them."""
    return json.loads(read_benchmark("hotpotqa"))[:EVALUATED_QUESTIONS]


def documents(**_: Any) -> Splits:
    """Return the items: every question in both conditions."""
    return as_splits(
        {
            "prompt": _prompt(question, condition),
            "answers": [question["answer"]],
            "cluster": question["_id"],
            "condition": condition,
        }
        for question in evaluated_questions()
        for condition in CONDITIONS
    )


def score_answer(item: dict[str, Any], results: Results) -> dict[str, Any]:
    """Score an answer; the names end with the condition."""
    condition, text = item["condition"], results[0]
    return {
        f"exact_{condition}": exact(text, item["answers"]),
        f"f1_{condition}": f1(text, item["answers"]),
    }


def _prompt(question: dict[str, Any], condition: str) -> str:
    supporting = {title for title, _ in question["supporting_facts"]}
    paragraphs = [
        f"{title}: {''.join(sentences).strip()}"
        for title, sentences in question["context"]
        if condition == "distractors" or title in supporting
    ]
    return f"{INSTRUCTION}{chr(10).join(paragraphs)}\n\nQuestion: {question['question']}\n"
