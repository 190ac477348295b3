"""A view for the page: each model of a state on the sequence, with a head and predictions."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from antiphase.explorer.compute import (
    Computation,
    compute,
    default_head,
    head_payload,
    predictions,
    thumbnails,
)
from antiphase.explorer.edits import Edits
from antiphase.explorer.models import ExploredModel, ModelShelf
from antiphase.explorer.sequences import MAX_TOKENS, TokenSequence, sequence_of, tasks_of
from antiphase.explorer.state import Slot, State

KEPT_BYTES = 384 * 2**20  # of maps and logits of finished computations
KEPT_COMPUTATIONS = 512
Key = tuple[str, int | None, bytes, Edits]


class Viewer:
    """Computes views and keeps the last computations, up to a number of bytes.

    Args:
        shelf: the models.
        max_tokens: the longest sequence.
        kept_bytes: memory for finished computations; the last one is always kept.
    """

    def __init__(
        self, shelf: ModelShelf, max_tokens: int = MAX_TOKENS, kept_bytes: int = KEPT_BYTES
    ) -> None:
        self.shelf, self.max_tokens, self.kept_bytes = shelf, max_tokens, kept_bytes
        self._kept: OrderedDict[Key, Computation] = OrderedDict()
        self._described: dict[Key, dict[str, Any]] = {}  # of those that are kept
        self._lock = threading.Lock()  # an edit changes the model while it runs

    def view(
        self, state: State, superseded: Callable[[], bool] = lambda: False
    ) -> list[dict[str, Any]]:
        """Return what the page shows of each model of a state.

        Args:
            state: that was requested.
            superseded: whether a newer request has made it useless.

        Raises:
            ValueError: a model does not have what the state names.
            SupersededError: a newer request came.
        """
        with self._lock:
            return [self._slot(slot, state, superseded) for slot in state.slots]

    def _slot(self, slot: Slot, state: State, superseded: Callable[[], bool]) -> dict[str, Any]:
        explored = self.shelf.get(slot.name, slot.step)
        sequence = sequence_of(explored, state.text, state.drawn, self.max_tokens)
        before = self._computation(slot, explored, sequence, Edits(), superseded)
        now = self._computation(slot, explored, sequence, slot.edits, superseded)
        layer, head = slot.head or default_head(before, sequence)
        name = sequence.vocabulary.__getitem__ if sequence.vocabulary else explored.token_name
        heads = [m.signal.shape[1] for m in now.layers]
        if layer >= len(heads) or head >= heads[layer]:
            counts = ", ".join(map(str, heads[:8])) + (", ..." if len(heads) > 8 else "")
            raise ValueError(
                f"head: got {layer}.{head}, but {explored.entry.title} has the layers 0 to "
                f"{len(heads) - 1} with {counts} heads"
            )
        key = self._key(slot, sequence, slot.edits)
        if key not in self._described:  # the same for all heads
            self._described[key] = {
                **describe(explored, sequence, now),
                **predictions(now, before, sequence, name),
            }
        return {
            **self._described[key],
            "step": slot.step,
            "row": _row(state.row, sequence),
            "head": [layer, head],
            "heads": {f"{layer}.{head}": head_payload(now, sequence, layer, head)},
        }

    def _key(self, slot: Slot, sequence: TokenSequence, edits: Edits) -> Key:
        """Return what identifies a computation; factors of 1 change nothing."""
        return slot.name, slot.step, sequence.key, edits if edits else Edits()

    def _computation(
        self,
        slot: Slot,
        explored: ExploredModel,
        sequence: TokenSequence,
        edits: Edits,
        superseded: Callable[[], bool],
    ) -> Computation:
        key = self._key(slot, sequence, edits)
        if key not in self._kept:
            self._kept[key] = compute(explored, sequence, edits, superseded)
            while len(self._kept) > 1 and (
                self.bytes > self.kept_bytes or len(self._kept) > KEPT_COMPUTATIONS
            ):
                oldest, _ = self._kept.popitem(last=False)
                self._described.pop(oldest, None)
        self._kept.move_to_end(key)
        return self._kept[key]

    @property
    def bytes(self) -> int:
        """Return the memory of the computations that are kept."""
        return sum(kept.bytes for kept in self._kept.values())


def describe(
    explored: ExploredModel, sequence: TokenSequence, computation: Computation
) -> dict[str, Any]:
    """Return model and sequence, without the maps of any head but as thumbnails."""
    return {
        "name": explored.entry.name,
        "title": explored.entry.title,
        "mechanism": explored.mechanism,
        "tasks": tasks_of(explored),
        "layers": [m.signal.shape[1] for m in computation.layers],
        "noise": [m.noise is not None for m in computation.layers],
        "tokens": sequence.tokens,
        "roles": sequence.roles,
        "relevant": sequence.relevant,
        "note": sequence.note,
        "drawn": sequence.drawn,
        "thumbnails": [thumbnails(m) for m in computation.layers],
    }


def _row(row: int | None, sequence: TokenSequence) -> int:
    if row is not None and row >= sequence.length:
        raise ValueError(
            f"row: got {row}, but the sequence has the positions 0 to {sequence.length - 1}"
        )
    return sequence.row if row is None else row
