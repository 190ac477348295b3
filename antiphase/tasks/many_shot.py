"""Many-shot learning in context: labelled shots of made-up classes, then one without its label.

    <bos> w3 w9 lab2  w1 w4 lab0  w9 w5 lab2  ..  w5 w3 lab2
          shot        shot                        query, answer

Each text has classes of its own: a class is a random set of words and a random label, a shot is
`words` of them and the label. Every label whose class was seen before is asked for. `order` turns
the same shots into another order, to score how much the order matters.
"""

from dataclasses import dataclass

import numpy as np

from antiphase.tasks.base import Array, Examples, Role, Task, TaskOptions, named
from antiphase.tasks.counter_rng import Draw


@dataclass(frozen=True)
class ManyShotOptions(TaskOptions):
    """`classes` of `class_words` words each; `words` a shot; `labels` to choose from."""

    classes: int = 4
    labels: int = 16
    vocabulary: int = 64
    class_words: int = 4
    words: int = 2
    order: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 2 <= self.classes <= self.labels:
            raise ValueError(f"classes: got {self.classes}, expected 2 to labels={self.labels}")
        if not 1 <= self.words <= self.class_words:
            raise ValueError(
                f"words: got {self.words}, expected 1 to class_words={self.class_words}"
            )
        if self.classes * self.class_words > self.vocabulary:
            raise ValueError(
                f"vocabulary: {self.vocabulary} words are fewer than classes x class_words = "
                f"{self.classes * self.class_words}; raise vocabulary"
            )
        if self.shots < self.classes + 1:
            raise ValueError(
                f"length: {self.length} tokens hold {self.shots} shots, expected more than "
                f"classes={self.classes}; raise length"
            )

    @property
    def shots(self) -> int:
        """Return the shots of a text, the query among them."""
        return (self.length - 1) // (self.words + 1)


class ManyShot(Task):
    """Classes learnt from the text itself."""

    name = "many_shot"
    Options = ManyShotOptions
    arrangement = ("order",)

    def content(self, tokens: Array) -> Array:
        """Return the tokens without their order."""
        return np.sort(tokens, axis=1)

    def vocabulary(self) -> list[str]:
        o = self.options
        self.word, self.label = 2, 2 + o.vocabulary
        return ["<pad>", "<bos>", *named("w", o.vocabulary), *named("lab", o.labels)]

    @property
    def chance(self) -> float:
        return 1 / self.options.classes

    def draw(self, random: Draw) -> Examples:
        o, B = self.options, random.size
        C, n, w, rows = o.classes, o.shots, o.words, np.arange(random.size)[:, None]
        words = random.permutations("words", o.vocabulary)[:, : C * o.class_words]
        words = self.word + words.reshape(B, C, o.class_words)
        labels = self.label + random.permutations("labels", o.labels)[:, :C]
        kind = random.integers("classes", n, C)  # [B, n]
        kind[:, :C] = np.arange(C)  # each class is shown at least once
        u = random.uniform("which words", n * o.class_words).reshape(B, n, o.class_words)
        which = np.argsort(u, axis=-1)[..., :w]
        shots = np.empty((B, n, w + 1), dtype=np.int64)
        shots[..., :w] = words[rows[..., None], kind[..., None], which]
        shots[..., w] = labels[rows, kind]
        # The last shot is the query; an order permutes those before it.
        order = random.permutations(f"order {o.order}", n - 1)
        shots[:, :-1], kind[:, :-1] = shots[rows, order], kind[rows, order]
        out = Examples.blank(B, o.length, self.word)
        start = o.length - n * (w + 1)
        out.tokens[:, start:] = shots.reshape(B, -1)
        seen = np.zeros((B, n), dtype=bool)
        for c in range(C):
            here = kind == c
            seen |= here & (np.cumsum(here, axis=1) > 1)
        role = np.where(seen[..., None], Role.QUERY, Role.KEY) * np.ones(w + 1, dtype=np.int64)
        role[..., w] = np.where(seen, Role.TARGET, Role.ANSWER)
        out.roles[:, start:] = role.reshape(B, -1)
        out.needle[:, start:] = np.repeat(kind, w + 1, axis=1)
        out.ask()
        return out
