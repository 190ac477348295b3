"""Needles of which some are not there: answer, or say so.

    <bos> f3 f1  key2 val7  f0 f9  key5 val1  ..  key9 <none>

The needle task with one question. With probability `absent` its key stands nowhere in the text, and
the answer is the refusal. Wrong answers where the needle is absent, and refusals where it is there,
are counted apart.
"""

from dataclasses import dataclass

from antiphase.tasks.base import Examples, Role
from antiphase.tasks.counter_rng import Draw
from antiphase.tasks.needle import Needle, NeedleOptions


@dataclass(frozen=True)
class UnanswerableOptions(NeedleOptions):
    """`absent`: the share of questions whose key is not in the text."""

    absent: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.absent <= 1:
            raise ValueError(f"absent: got {self.absent}, expected 0 to 1")
        if self.queried != 1:
            raise ValueError(f"queried: got {self.queried}; one question a text may have no answer")
        if self.needles + 1 + (self.near > 0) > self.keys:
            raise ValueError(
                f"keys: got {self.keys}; beside {self.needles} needles, an absent key needs one, "
                "and near noise another"
            )


class Unanswerable(Needle):
    """Retrieval, or refusal where there is nothing to find."""

    name = "unanswerable"
    version = 2
    kept_out = 1
    Options = UnanswerableOptions

    def vocabulary(self) -> list[str]:
        words = super().vocabulary()
        self.refusal = len(words)
        return [*words, "<none>"]

    def draw(self, random: Draw) -> Examples:
        out = super().draw(random)
        absent = random.uniform("absent", 1)[:, 0] < self.options.absent
        missing = self.key + random.permutations("keys", self.options.keys)[:, -1]
        out.tokens[absent, -2], out.tokens[absent, -1] = missing[absent], self.refusal
        out.needle[absent, -2:] = -1
        out.roles[absent, -2:] = (Role.QUERY, Role.TARGET)
        out.ask()
        return out
