"""How a short answer is compared with the accepted ones: exactly, or by the words they share."""

import re
import string
from collections import Counter
from collections.abc import Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised(answer: str) -> str:
    """Return an answer in lower case, without punctuation, articles and extra spaces."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def exact(answer: str, accepted: Sequence[str]) -> float:
    """Return 1 if the answer equals an accepted one after normalisation, else 0."""
    return float(any(normalised(answer) == normalised(a) for a in accepted))


def f1(answer: str, accepted: Sequence[str]) -> float:
    """Return the best F1 of the answer's words with those of an accepted answer."""
    return max(_f1(normalised(answer).split(), normalised(a).split()) for a in accepted)


def _f1(answer: list[str], accepted: list[str]) -> float:
    shared = sum((Counter(answer) & Counter(accepted)).values())
    return 2 * shared / (len(answer) + len(accepted)) if shared else 0.0
