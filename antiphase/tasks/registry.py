"""Every made-up task by its name. A new one is a new file and a line here."""

from antiphase.tasks.arithmetic import Arithmetic
from antiphase.tasks.base import Task
from antiphase.tasks.many_shot import ManyShot
from antiphase.tasks.needle import Needle
from antiphase.tasks.recall import Recall
from antiphase.tasks.unanswerable import Unanswerable

TASKS: dict[str, type[Task]] = {
    task.name: task for task in (Needle, Recall, ManyShot, Unanswerable, Arithmetic)
}


def task(name: str) -> type[Task]:
    """Return the class of a made-up task, or say which names there are."""
    if name == "language":
        raise ValueError("task: language is real text; it is antiphase.tasks.Language")
    if name not in TASKS:
        raise ValueError(f"task: got {name!r}, allowed are {', '.join(TASKS)}")
    return TASKS[name]
