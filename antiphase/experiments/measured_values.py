"""What was measured of a model, kept in the folder of its run: `measured.json`.

A study that was killed while it measured continues there, and a run whose weights are on another
machine can still be reported.
"""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphase.experiments.conditions import Condition
from antiphase.training.checkpoints import write_atomic

MEASURED = "measured.json"
DIGITS = 7  # after the point; stored and fresh values are the same

_PLAIN = (str, int, float, bool, type(None), Condition)


def measure_name(measure: Callable[..., Any]) -> str | None:
    """Return a name of a measure that is the same in every process.

    Args:
        measure: a function of a module, or a partial of one with keywords.

    Returns:
        None if it has no such name: lambdas, inner functions, other kinds of arguments.
    """
    if isinstance(measure, functools.partial):
        name, options = measure_name(measure.func), measure.keywords
        if name is None or measure.args or not all(isinstance(v, _PLAIN) for v in options.values()):
            return None
        return f"{name}({', '.join(f'{key}={options[key]!r}' for key in sorted(options))})"
    name = getattr(measure, "__qualname__", None)
    return None if name is None or "<" in name else f"{measure.__module__}.{name}"


def measured_values(
    folder: Path, name: str, compute: Callable[[], NDArray[np.float64]]
) -> NDArray[np.float64]:
    """Return the values of that name, computed and kept unless they are there.

    Args:
        folder: of the run.
        name: of what is measured, with the version of the test that measures it.
        compute: measures.
    """
    path = folder / MEASURED
    stored = stored_values(folder)
    if name not in stored:
        values = np.asarray(compute(), dtype=np.float64)
        stored[name] = np.round(values, DIGITS).tolist()
        write_atomic(path, json.dumps(stored))
    return np.array(stored[name], dtype=np.float64)


def stored_values(folder: Path) -> dict[str, Any]:
    """Return what is stored; nothing if the file is damaged, so that it is measured again."""
    try:
        stored = json.loads((folder / MEASURED).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return stored if isinstance(stored, dict) else {}
