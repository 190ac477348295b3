r"""Many demonstrations of a classification (SST-2), in several orders.

    {"prompt": "Review: ..\nSentiment: positive\n\n .. Review: ..\nSentiment:",
     "choices": ["negative", "positive"], "gold": 1, "cluster": "17", "condition": "positive_last"}

Each question is asked with the same demonstrations in every order. A model that reads them all
gives the same answer; one that follows the last ones does not.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphase.evaluation.benchmark_data import read_benchmark
from antiphase.evaluation.suite.splits import Results, Splits, as_splits

SHOTS = 16
LABELS = ["negative", "positive"]
ORDERS = ("alternating", "negative_last", "positive_last", "random_a", "random_b")


def documents(shots: int = SHOTS, **_: Any) -> Splits:
    """Return the items: every question in all orders.

    Args:
        shots: number of demonstrations, half of each label.
    """
    reviews = _reviews()
    rng = np.random.default_rng(0)
    order = rng.permutation(len(reviews))
    pool, asked = order[: len(order) // 2], order[len(order) // 2 :]
    items = []
    for question in asked.tolist():
        shown = np.concatenate(
            [
                rng.permutation([i for i in pool if reviews[i][1] == label])[: shots // 2]
                for label in range(len(LABELS))
            ]
        )
        for name, arranged in arrangements(shown, rng).items():
            shown_text = "".join(_example(*reviews[i]) + "\n\n" for i in arranged)
            items.append(
                {
                    "prompt": shown_text + _example(reviews[question][0]),
                    "choices": LABELS,
                    "gold": reviews[question][1],
                    "cluster": str(question),
                    "condition": name,
                }
            )
    return as_splits(items)


def arrangements(
    shown: NDArray[np.int64], rng: np.random.Generator
) -> dict[str, NDArray[np.int64]]:
    """Return the same demonstrations in every order.

    Args:
        shown: indices, those of the first label before those of the second, in equal numbers.
        rng: of the random orders.
    """
    first, second = np.split(shown, 2)
    return {
        "alternating": np.stack([first, second], axis=1).ravel(),
        "negative_last": np.concatenate([second, first]),
        "positive_last": shown,
        "random_a": rng.permutation(shown),
        "random_b": rng.permutation(shown),
    }


def score_choice(item: dict[str, Any], results: Results) -> dict[str, Any]:
    """Score an item: whether the correct label is the likelier one, and which label is."""
    chosen = int(np.argmax([loglikelihood for loglikelihood, _ in results]))
    condition = item["condition"]
    return {
        f"correct_{condition}": float(chosen == item["gold"]),
        f"chosen_{condition}": float(chosen),
    }


def _example(text: str, label: int | None = None) -> str:
    return f"Review: {text}\nSentiment:" + ("" if label is None else f" {LABELS[label]}")


def _reviews() -> list[tuple[str, int]]:
    import pyarrow as pa

    with pa.ipc.open_stream(pa.BufferReader(read_benchmark("sst2"))) as reader:
        table = reader.read_all()
    rows = zip(table["sentence"].to_pylist(), table["label"].to_pylist(), strict=True)
    return [(text.strip(), int(label)) for text, label in rows]
