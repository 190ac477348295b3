"""Where attention should go: the rows that predict an answer, and what each of their keys is."""

from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from antiphase.tasks.base import Array, Examples, Role


@dataclass(frozen=True)
class GroundTruth:
    """The rows Q that predict an answer, and the kind of every key position they can attend to.

    R, S, I and the query's own positions together are all visible positions.

    Attributes:
        rows: [B, n], the query positions Q.
        relevant: [B, n, T], R: the key and the value of the needle that holds the answer, at every
            occurrence before the query.
        sink: [B, n, T], S: the first token.
        irrelevant: [B, n, T], I: every other visible position except the query's own.
        depth: [B, n], where the answer is, from 0 (start) to 1 (the row itself).
    """

    rows: Tensor
    relevant: Tensor
    sink: Tensor
    irrelevant: Tensor
    depth: Tensor

    @property
    def visible(self) -> Tensor:
        """Return every key position that a row can attend to, [B, n, T]."""
        T = self.relevant.shape[-1]
        return torch.arange(T, device=self.rows.device) <= self.rows[..., None]

    @property
    def own(self) -> Tensor:
        """Return the positions of the query itself, up to the row, [B, n, T]."""
        return self.visible & ~(self.relevant | self.sink | self.irrelevant)

    def select(self, sequences: Tensor) -> "GroundTruth":
        """Return the ground truth of some sequences of the batch, given by index."""
        return GroundTruth(*(getattr(self, f.name)[sequences] for f in fields(self)))


def ground_truth(examples: Examples, last: int | None = None) -> GroundTruth:
    """Return the ground truth of a batch of a synthetic task.

    Args:
        examples: a batch, as `task.examples(...)` returns it.
        last: keep only this many targets of each sequence, the last ones.

    Raises:
        ValueError: the sequences do not all have the same number of targets.
    """
    targets = examples.roles == Role.TARGET
    counts = set(targets.sum(1).tolist())
    if len(counts) != 1 or counts == {0}:
        raise ValueError(
            f"ground_truth: the sequences have {sorted(counts)} targets, expected the same number "
            "(at least 1) in each"
        )
    n = counts.pop()
    B, T = targets.shape
    answers = np.nonzero(targets)[1].reshape(B, n)[:, -last if last else 0 :]
    rows = answers - 1  # a row predicts the token after it
    position = np.arange(T)
    needle = np.take_along_axis(examples.needle, answers, 1)  # [B, n]
    visible = position <= rows[..., None]
    query = np.take_along_axis(_query_starts(examples.roles), rows, 1)[..., None]  # [B, n, 1]
    before = position < query
    relevant = (
        before & (examples.needle[:, None, :] == needle[..., None]) & (needle[..., None] >= 0)
    )
    sink = visible & (position == 0)
    first = np.where(relevant.any(-1), relevant.argmax(-1), 0)
    return GroundTruth(
        torch.from_numpy(rows),
        torch.from_numpy(relevant),
        torch.from_numpy(sink),
        torch.from_numpy(before & ~relevant & ~sink),
        torch.from_numpy(first / np.maximum(rows, 1)),
    )


def _query_starts(roles: Array) -> Array:
    """Return where the query that a position belongs to starts, [B, T]; elsewhere the position.

    A query is a run of QUERY positions. The TARGET positions after it belong to it, since a target
    of several tokens is predicted by its own earlier tokens, too.
    """
    position = np.broadcast_to(np.arange(roles.shape[1]), roles.shape)
    query = roles == Role.QUERY
    starts = query.copy()
    starts[:, 1:] &= ~query[:, :-1]
    outside = ~(query | (roles == Role.TARGET))
    start, stop = (
        np.maximum.accumulate(np.where(here, position, -1), axis=1) for here in (starts, outside)
    )
    return np.where(start > stop, start, position)


def without_answers(ids: Tensor, rows: int) -> GroundTruth:
    """Return the last rows of sequences [B, T] where no answer is known: R is empty."""
    B, T = ids.shape
    places = torch.arange(max(T - rows, 1), T).expand(B, -1)
    position = torch.arange(T)
    visible = position <= places[..., None]
    sink = visible & (position == 0)
    own = position == places[..., None]
    nothing = torch.zeros_like(visible)
    return GroundTruth(places, nothing, sink, visible & ~sink & ~own, torch.zeros(places.shape))
