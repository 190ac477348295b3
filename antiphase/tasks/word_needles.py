"""The needle task in English: "The special number for CITY is N.", for pretrained models.

    The baker opens his shop ... The special number for Oslo is 417. ... The library closes ...
    Question: What is the special number for Oslo?
    Answer: The special number for Oslo is 417

The haystack is plain sentences with the needles of several cities between them. One city is
queried, through the model's chat template where it has one.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

CITIES = [
    "Paris",
    "Rome",
    "Oslo",
    "Cairo",
    "Lima",
    "Delhi",
    "Tokyo",
    "Madrid",
    "Berlin",
    "Vienna",
    "Athens",
    "Dublin",
    "Lisbon",
    "Prague",
    "Warsaw",
    "Moscow",
    "Havana",
    "Nairobi",
    "Boston",
    "Chicago",
    "Toronto",
    "Sydney",
    "Seoul",
    "Geneva",
    "Milan",
    "Hamburg",
    "Munich",
    "Venice",
    "Naples",
    "Denver",
    "Houston",
    "Seattle",
    "Manila",
    "Jakarta",
    "Beirut",
    "Tunis",
    "Kiev",
    "Zurich",
    "Lyon",
    "Dallas",
]
HAYSTACK = (
    "The baker opens his shop before the sun is up.",
    "A narrow path leads from the mill down to the river.",
    "Most of the houses in the street have green doors.",
    "On Sundays the market fills the whole square.",
    "The old clock in the hall runs a little slow.",
    "Rain is expected in the hills by the evening.",
    "She keeps her pencils in a tin that once held tea.",
    "The library closes early when there is snow.",
    "Two ferries cross the bay every hour in summer.",
    "The garden behind the school has an apple tree.",
    "He wrote the letter twice and sent neither of them.",
    "The train was late, so they walked along the canal.",
    "A cat sleeps on the warm stones by the gate.",
    "The museum shows maps that sailors drew by hand.",
    "In autumn the vineyards turn red and gold.",
    "The children built a small dam of mud and sticks.",
    "Nobody remembers who painted the blue bench.",
    "The bridge was closed for repairs all through May.",
    "They drink their coffee without sugar or milk.",
    "The lamp above the table flickers when it storms.",
    "A violin can be heard through the open window.",
    "The farmer counts his sheep before he locks the barn.",
    "Every spring the storks come back to the same roof.",
    "The tailor measures twice and cuts once.",
)
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class Question:
    """One sequence, with its answer at the end.

    Attributes:
        ids: token ids, [T].
        answer: the position where the answer begins.
        row: the position that predicts the first digit of the answer.
        relevant: positions of the queried city and its number in the haystack.
        depth: relative position of the needle: 0 at the start of the haystack.
        text: the same sequence as text.
    """

    ids: list[int]
    answer: int
    row: int
    relevant: list[int]
    depth: float
    text: str


class WordNeedles:
    """Questions by index, for one tokenizer; the depth cycles through `DEPTHS`.

    Args:
        tokenizer: a fast tokenizer (it knows the character offsets of its tokens).
        length: the maximum sequence length in tokens.
        needles: number of needles per sequence; one of them is queried.
        seed: other seeds give other questions.

    Raises:
        ValueError: the tokenizer is not fast, its chat template fails, or the length leaves no
            room for a haystack.
    """

    def __init__(self, tokenizer: Any, length: int = 512, needles: int = 4, seed: int = 0) -> None:
        if not getattr(tokenizer, "is_fast", False):
            raise ValueError(
                "WordNeedles: needs a fast tokenizer, which knows the offsets of its tokens"
            )
        if not 1 <= needles <= len(CITIES):
            raise ValueError(f"needles: got {needles}, expected 1 to {len(CITIES)}")
        self.tokenizer, self.length, self.needles, self.seed = tokenizer, length, needles, seed
        self._sizes = [self._count(sentence) for sentence in HAYSTACK]
        longest = max(CITIES, key=self._count)
        self._room = length - self._count(self._prompt("", longest)) - self._count(" 999") - 1
        self._room -= needles * (self._count(_needle(longest, 999)) + 1)
        if self._room < max(self._sizes):
            raise ValueError(
                f"length: {length} tokens leave no room for a haystack beside {needles} needles "
                "and the question; raise length"
            )

    def question(self, i: int) -> Question:
        """Return question i."""
        rng = np.random.default_rng([self.seed, i])
        cities = [CITIES[c] for c in rng.permutation(len(CITIES))[: self.needles]]
        numbers = [int(n) for n in rng.permutation(900)[: self.needles] + 100]
        sentences: list[str] = []
        room = self._room
        while True:
            pick = int(rng.integers(len(HAYSTACK)))
            room -= self._sizes[pick] + 1
            if room < 0:
                break
            sentences.append(HAYSTACK[pick])
        depth = DEPTHS[i % len(DEPTHS)]
        n = len(sentences)
        places = [depth * n, *rng.uniform(0, n, self.needles - 1)]
        needles = [_needle(c, number) for c, number in zip(cities, numbers, strict=True)]
        for place, needle in sorted(zip(places, needles, strict=True), reverse=True):
            sentences.insert(round(place), needle)
        return self._encode(" ".join(sentences), needles[0], cities[0], numbers[0], depth)

    def _encode(self, haystack: str, needle: str, city: str, number: int, depth: float) -> Question:
        """Tokenize a question and find the positions of its needle and answer."""
        prompt = self._prompt(haystack, city)
        text = f"{prompt} {number}"
        encoded = self.tokenizer(
            text, return_offsets_mapping=True, add_special_tokens=not self._has_template
        )
        spans = encoded["offset_mapping"]
        start = text.index(needle)
        wanted = [
            (start + needle.index(word), start + needle.index(word) + len(word))
            for word in (city, str(number))
        ]
        relevant = [t for t, span in enumerate(spans) if any(_overlap(span, w) for w in wanted)]
        answer = next(t for t, (_, end) in enumerate(spans) if end > len(prompt))
        digit = next(t for t, (_, end) in enumerate(spans) if end > len(prompt) + 1)
        last = max(t for t, (_, end) in enumerate(spans) if end > len(prompt))
        ids = encoded["input_ids"][: last + 1]  # some tokenizers append an end token
        return Question(ids, answer, digit - 1, relevant, depth, text)

    def _prompt(self, haystack: str, city: str) -> str:
        """Return everything before the answer."""
        question = f"What is the special number for {city}?"
        answer_start = f"The special number for {city} is"
        if not self._has_template:
            return f"{haystack}\n\nQuestion: {question}\nAnswer: {answer_start}"
        messages = [{"role": "user", "content": f"{haystack}\n\n{question}"}]
        try:
            prompt = self.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True
            )
        except Exception as error:  # a template is a program, it can raise anything
            raise ValueError(f"the tokenizer's chat template does not work ({error})") from error
        return f"{prompt}{answer_start}"

    @property
    def _has_template(self) -> bool:
        return bool(getattr(self.tokenizer, "chat_template", None))

    def _count(self, text: str) -> int:
        return len(self.tokenizer(text, add_special_tokens=False)["input_ids"])


def _needle(city: str, number: int) -> str:
    return f"The special number for {city} is {number}."


def _overlap(span: tuple[int, int], other: tuple[int, int]) -> bool:
    return span[0] < other[1] and other[0] < span[1]
