"""Many-shot in-context classification: labelled shots of synthetic classes, then a query.

    <bos> w3 w9 lab2  w1 w4 lab0  w9 w5 lab2  ..  w5 w3 lab2
          shot        shot                        query, target

Each sequence has its own classes: a class is a random set of words with a random label, and a shot
is `words` of them with the label. Every label of a class that occurred before is a target. `order`
permutes the same shots, to measure how much their order matters.
"""

from dataclasses import dataclass

import numpy as np

from antiphase.tasks.base import Array, Examples, Role, Task, TaskOptions, numbered
from antiphase.tasks.counter_rng import CounterRNG


@dataclass(frozen=True)
class ManyShotOptions(TaskOptions):
    """The classes and shots of a sequence.

    Attributes:
        classes: number of classes per sequence.
        labels: number of different labels in the vocabulary.
        vocabulary: number of different words in the vocabulary.
        class_words: number of words per class.
        words: number of words per shot.
        order: which permutation of the shots; the shots themselves stay the same.
    """

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
        """Return the number of shots per sequence, including the query."""
        return (self.length - 1) // (self.words + 1)


class ManyShot(Task):
    """Classes learned from the sequence itself."""

    name = "many_shot"
    Options = ManyShotOptions
    unkeyed_options = ("order",)

    def split_key(self, tokens: Array) -> Array:
        """Return the sorted tokens: every order of the same shots is in the same split."""
        return np.sort(tokens, axis=1)

    def build_vocabulary(self) -> list[str]:
        options = self.options
        self.first_word, self.first_label = 2, 2 + options.vocabulary
        words, labels = numbered("w", options.vocabulary), numbered("lab", options.labels)
        return ["<pad>", "<bos>", *words, *labels]

    @property
    def chance(self) -> float:
        return 1 / self.options.classes

    def generate(self, rng: CounterRNG) -> Examples:
        options, B = self.options, rng.size
        C, n, w = options.classes, options.shots, options.words
        rows = np.arange(B)[:, None]
        words = rng.permutations("words", options.vocabulary)[:, : C * options.class_words]
        words = self.first_word + words.reshape(B, C, options.class_words)
        labels = self.first_label + rng.permutations("labels", options.labels)[:, :C]
        shot_class = rng.integers("classes", n, C)  # [B, n]
        shot_class[:, :C] = np.arange(C)  # each class occurs at least once
        priority = rng.uniform("which words", n * options.class_words)
        chosen = np.argsort(priority.reshape(B, n, options.class_words), axis=-1)[..., :w]
        shots = np.empty((B, n, w + 1), dtype=np.int64)
        shots[..., :w] = words[rows[..., None], shot_class[..., None], chosen]
        shots[..., w] = labels[rows, shot_class]
        # The last shot is the query; only the shots before it are permuted.
        order = rng.permutations(f"order {options.order}", n - 1)
        shots[:, :-1], shot_class[:, :-1] = shots[rows, order], shot_class[rows, order]
        out = Examples.blank(B, options.length, self.first_word)
        start = options.length - n * (w + 1)
        out.tokens[:, start:] = shots.reshape(B, -1)
        seen_before = np.zeros((B, n), dtype=bool)
        for c in range(C):
            here = shot_class == c
            seen_before |= here & (np.cumsum(here, axis=1) > 1)
        roles = np.empty((B, n, w + 1), dtype=np.int64)
        roles[..., :w] = np.where(seen_before, Role.QUERY, Role.KEY)[..., None]
        roles[..., w] = np.where(seen_before, Role.TARGET, Role.ANSWER)
        out.roles[:, start:] = roles.reshape(B, -1)
        out.needle[:, start:] = np.repeat(shot_class, w + 1, axis=1)
        out.label_targets()
        return out
