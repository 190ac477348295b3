"""The needle task where some queries have no answer: answer, or say that there is none.

    <bos> f3 f1  key2 val7  f0 f9  decoy5 val1  ..  key9 <none>
                 needle            distractor       query of an absent key, target

The needle task with one query. With probability `absent`, the queried key does not occur in the
sequence, and the target is the refusal token. Wrong answers to absent keys and refusals of present
keys are scored separately.
"""

from dataclasses import dataclass

from antiphase.tasks.base import Examples, Role
from antiphase.tasks.counter_rng import CounterRNG
from antiphase.tasks.needle import Needle, NeedleOptions


@dataclass(frozen=True)
class UnanswerableOptions(NeedleOptions):
    """`absent`: the fraction of queries whose key is not in the sequence."""

    absent: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.absent <= 1:
            raise ValueError(f"absent: got {self.absent}, expected 0 to 1")
        if self.queried != 1:
            raise ValueError(
                f"queried: got {self.queried}, expected 1: an unanswerable sequence has one query"
            )
        if self.needles + 1 + (self.near > 0) > self.keys:
            raise ValueError(
                f"keys: got {self.keys}; besides the {self.needles} needles, an absent key needs "
                "one, and near distractors need another"
            )


class Unanswerable(Needle):
    """Retrieval, or refusal where the key is absent. `refusal` is the refusal's token id."""

    name = "unanswerable"
    version = 2
    held_back_keys = 1
    Options = UnanswerableOptions

    def build_vocabulary(self) -> list[str]:
        tokens = super().build_vocabulary()
        self.refusal = len(tokens)
        return [*tokens, "<none>"]

    def generate(self, rng: CounterRNG) -> Examples:
        out = super().generate(rng)
        absent = rng.uniform("absent", 1)[:, 0] < self.options.absent
        absent_key = self.first_key + rng.permutations("keys", self.options.keys)[:, -1]
        out.tokens[absent, -2], out.tokens[absent, -1] = absent_key[absent], self.refusal
        out.needle[absent, -2:] = -1
        out.roles[absent, -2:] = (Role.QUERY, Role.TARGET)
        out.label_targets()
        return out
