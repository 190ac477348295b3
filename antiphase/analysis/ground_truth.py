"""What a model should look at: the rows that predict an answer, and what each of their keys is."""

from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from antiphase.tasks.base import Examples, Role


@dataclass(frozen=True)
class Truth:
    """The rows Q [B, n] that predict an answer, and for each the kinds of its keys, [B, n, T].

    R: where the answer can be found (its needle's key and value). S: the first token. I: every
    other visible position.
    """

    rows: Tensor
    relevant: Tensor
    sink: Tensor
    irrelevant: Tensor
    depth: Tensor  # [B, n]: where the answer stands, from 0 (start) to 1 (the row itself)

    @property
    def visible(self) -> Tensor:
        """Return every key that a row may see."""
        return self.relevant | self.sink | self.irrelevant

    def of(self, texts: Tensor) -> "Truth":
        """Return the truth of some texts."""
        return Truth(*(getattr(self, f.name)[texts] for f in fields(self)))


def truth_of(examples: Examples, last: int | None = None) -> Truth:
    """Return the ground truth of a batch; `last` keeps the last targets of each text only."""
    targets = examples.roles == Role.TARGET
    counts = set(targets.sum(1).tolist())
    if len(counts) != 1 or counts == {0}:
        raise ValueError(
            f"truth: the texts ask for {sorted(counts)} answers each, expected the same number"
        )
    n = counts.pop()
    B, T = targets.shape
    places = np.nonzero(targets)[1].reshape(B, n)[:, -last if last else 0 :]  # of the answers
    rows = places - 1
    here = np.arange(T)
    needle = np.take_along_axis(examples.needle, places, 1)  # [B, n]
    seen = here <= rows[..., None]
    relevant = (examples.needle[:, None, :] == needle[..., None]) & (here < rows[..., None])
    relevant &= needle[..., None] >= 0
    sink = seen & (here == 0)
    first = np.where(relevant.any(-1), relevant.argmax(-1), 0)
    as_tensor = torch.from_numpy
    return Truth(
        as_tensor(rows),
        as_tensor(relevant),
        as_tensor(sink),
        as_tensor(seen & ~relevant & ~sink),
        as_tensor(first / np.maximum(rows, 1)),
    )
