"""Tasks: made-up ones with ground truth by position, and text."""

from antiphase.tasks.base import IGNORED, Examples, Role, Task, as_tensors
from antiphase.tasks.language import Language
from antiphase.tasks.registry import TASKS, task

__all__ = ["IGNORED", "TASKS", "Examples", "Language", "Role", "Task", "as_tensors", "task"]
