"""`antiphase explore --save`: a page that a person can mail, with a few sequences inside."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from antiphase import __version__
from antiphase.experiments.arms import STANDARD, V1, V2
from antiphase.experiments.report import EXPLORER
from antiphase.explorer.compute import compute, default_head, head_payload, predictions
from antiphase.explorer.edits import Edits
from antiphase.explorer.models import ExploredModel, ModelShelf
from antiphase.explorer.page import saved_page
from antiphase.explorer.sequences import TokenSequence, sequence_of
from antiphase.explorer.state import Drawn
from antiphase.explorer.study import StudyView
from antiphase.explorer.view import describe
from antiphase.training.checkpoints import write_atomic

MAX_BYTES = 8 * 10**6
EXAMPLES = 3


def save_page(
    shelf: ModelShelf,
    names: Sequence[str],
    path: Path,
    *,
    texts: Sequence[str] = (),
    examples: int = EXAMPLES,
    drawn: Drawn | None = None,
    max_bytes: int = MAX_BYTES,
) -> list[str]:
    """Write a page with the maps of all heads of some models on a few sequences.

    Args:
        shelf: the models.
        names: of the models in the page.
        path: of the page.
        texts: the sequences; without any, examples of each model's task.
        examples: number of examples.
        drawn: options of the examples; the index is counted from its own.
        max_bytes: the page is never larger: later sequences are left out.

    Returns:
        What was left out, as notes for the user.

    Raises:
        ValueError: not even the first sequence fits, or a model cannot show a sequence.
    """
    drawn = drawn or Drawn()
    drawings: list[tuple[str | None, Drawn]] = [(text, drawn) for text in texts]
    if not texts:
        indices = range(drawn.example, drawn.example + examples)
        fields = {name: getattr(drawn, name) for name in Drawn.__dataclass_fields__}
        drawings = [(None, Drawn(**{**fields, "example": i})) for i in indices]
    views: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    entries = [shelf.entries[name] for name in names]
    start = {
        "version": __version__,
        "models": [
            {"name": e.name, "title": e.title, "run": False, "study": False, "milestones": []}
            for e in entries
        ],
        "first": list(names[:2]),
        "examples": 0,
    }
    size = len(saved_page({"start": start, "views": {}}).encode())
    kept = 0
    for text, which in drawings:
        found = {}
        for name in names:
            explored = shelf.get(name)
            found[name] = complete_view(explored, sequence_of(explored, text, which))
        size += sum(len(json.dumps(view, separators=(",", ":"))) for view in found.values())
        if size > max_bytes:
            break
        for name, view in found.items():
            views[name].append(view)
        kept += 1
    if not kept:
        raise ValueError(
            f"--save: one sequence of {', '.join(names)} takes the page beyond "
            f"{max_bytes / 1e6:.0f} MB; give fewer or smaller models, or a shorter sequence"
        )
    page = saved_page({"start": {**start, "examples": kept}, "views": views})
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, page)
    left = len(drawings) - kept
    limit = f"{max_bytes / 1e6:.0f} MB"
    return (
        [f"{left} of {len(drawings)} sequences were left out: {limit} is the limit"] if left else []
    )


def save_study_page(folder: Path) -> Path | None:
    """Write the page of a study's own models beside its report, which links it.

    Args:
        folder: of a study that is saved.

    Returns:
        The page: one model of each arm that the report draws, on held-out sequences; None if the
        folder has no trained models, or their maps do not fit into a page.
    """
    view = StudyView(folder)
    entries = {entry.name: entry for entry in view.entries()}
    seed = next(iter(view.study.seeds), None)
    names = [f"{arm.name}, seed {seed}" for arm in (V1, STANDARD, V2)]
    names = [name for name in names if name in entries]
    if not names:
        return None
    path = folder / EXPLORER
    try:
        save_page(ModelShelf(list(entries.values())), names, path)
    except ValueError:
        return None
    return path


def complete_view(explored: ExploredModel, sequence: TokenSequence) -> dict[str, Any]:
    """Return the view of a model on a sequence with the maps of all its heads."""
    computation = compute(explored, sequence, Edits())
    name = sequence.vocabulary.__getitem__ if sequence.vocabulary else explored.token_name
    return {
        **describe(explored, sequence, computation),
        **predictions(computation, computation, sequence, name),
        "step": None,
        "row": sequence.row,
        "head": list(default_head(computation, sequence)),
        "heads": {
            f"{layer}.{head}": head_payload(computation, sequence, layer, head)
            for layer, m in enumerate(computation.layers)
            for head in range(m.signal.shape[1])
        },
    }
