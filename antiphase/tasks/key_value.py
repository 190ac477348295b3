"""What tasks of keys and values share: their words, and the least there must be of each."""

from dataclasses import dataclass

from antiphase.tasks.base import Task, TaskOptions, named


@dataclass(frozen=True)
class PairOptions(TaskOptions):
    """How many keys, values and filler words there are."""

    keys: int = 16
    values: int = 16
    fillers: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.values < 2 or self.fillers < 1:
            raise ValueError(
                f"values, fillers: got {self.values}, {self.fillers}, expected at least 2 and 1"
            )


class PairTask(Task):
    """A task whose answers are values."""

    def vocabulary(self) -> list[str]:
        o = self.options
        kinds = (("f", o.fillers), ("key", o.keys), ("val", o.values))
        self.filler, self.key, self.value = 2, 2 + o.fillers, 2 + o.fillers + o.keys
        return ["<pad>", "<bos>"] + [word for kind, n in kinds for word in named(kind, n)]

    @property
    def chance(self) -> float:
        return 1 / self.options.values
