"""What tasks of keys and values share: their vocabulary and the bounds of its sizes."""

from dataclasses import dataclass

from antiphase.tasks.base import Task, TaskOptions, numbered


@dataclass(frozen=True)
class KeyValueOptions(TaskOptions):
    """The number of different `keys`, `values` and `fillers` in the vocabulary."""

    keys: int = 16
    values: int = 16
    fillers: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.values < 2 or self.fillers < 1:
            raise ValueError(
                f"values, fillers: got {self.values}, {self.fillers}, expected at least 2 and 1"
            )


class KeyValueTask(Task):
    """A task whose answers are values. `first_key` etc. are the first token ids of each kind."""

    def build_vocabulary(self) -> list[str]:
        options = self.options
        self.first_filler = 2
        self.first_key = self.first_filler + options.fillers
        self.first_value = self.first_key + options.keys
        kinds = (("f", options.fillers), ("key", options.keys), ("val", options.values))
        return ["<pad>", "<bos>"] + [token for kind, n in kinds for token in numbered(kind, n)]

    @property
    def chance(self) -> float:
        return 1 / self.options.values
