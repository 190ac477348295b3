"""Every synthetic task by name. A new task is a new file and one line here.

Classes are imported on first use, so that listing the tasks needs no PyTorch.
"""

import importlib
from typing import TYPE_CHECKING, NamedTuple

from antiphase.options import nearest

if TYPE_CHECKING:
    from antiphase.tasks.base import Task


class TaskEntry(NamedTuple):
    """Where a task is defined, and what the model has to do."""

    module: str
    class_name: str
    summary: str


TASKS = {
    "needle": TaskEntry("needle", "Needle", "retrieve the value of a key among distractors"),
    "composite_needle": TaskEntry(
        "composite_needle", "CompositeNeedle", "the same with keys of several, shared tokens"
    ),
    "recall": TaskEntry("recall", "Recall", "recall many key-value pairs (MQAR)"),
    "many_shot": TaskEntry("many_shot", "ManyShot", "classify in context from labelled shots"),
    "unanswerable": TaskEntry("unanswerable", "Unanswerable", "retrieve, or say it is absent"),
    "arithmetic": TaskEntry("arithmetic", "Arithmetic", "follow a chain of assignments"),
}


def task(name: str) -> "type[Task]":
    """Return the class of a synthetic task.

    Args:
        name: a key of `TASKS`.

    Raises:
        ValueError: there is no synthetic task of that name; says which there are.
    """
    if name == "language":
        raise ValueError(
            "task: got 'language', which is natural-language text; use antiphase.tasks.Language"
        )
    if name not in TASKS:
        raise ValueError(
            f"task: got {name!r}, allowed are {', '.join(TASKS)}"
            f"{nearest(name, [*TASKS, 'language'])}"
        )
    entry = TASKS[name]
    found: type[Task] = getattr(
        importlib.import_module(f"antiphase.tasks.{entry.module}"), entry.class_name
    )
    return found
