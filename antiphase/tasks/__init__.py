"""Tasks: synthetic ones with ground truth per position, and natural-language text."""

from typing import TYPE_CHECKING

from antiphase.lazy_imports import lazy_names
from antiphase.tasks.registry import TASKS, task

if TYPE_CHECKING:
    from antiphase.tasks.base import IGNORED, Examples, Role, Task, as_tensors
    from antiphase.tasks.language import Language

__all__ = ["IGNORED", "TASKS", "Examples", "Language", "Role", "Task", "as_tensors", "task"]

__getattr__ = lazy_names(
    __name__,
    {
        "IGNORED": "base",
        "Examples": "base",
        "Language": "language",
        "Role": "base",
        "Task": "base",
        "as_tensors": "base",
    },
)
