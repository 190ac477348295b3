"""Results as JSON can hold them."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any


def json_ready(content: Any) -> Any:
    """Return the same content of dicts, lists, text, numbers and None.

    Args:
        content: dataclasses, mappings, sequences, arrays, numbers; anything else becomes text.

    Returns:
        The content; a number that is not finite is None, since JSON has no such number.
    """
    if dataclasses.is_dataclass(content) and not isinstance(content, type):
        content = dataclasses.asdict(content)
    if isinstance(content, Mapping):
        return {str(key): json_ready(value) for key, value in content.items()}
    if isinstance(content, (list, tuple, set, range)):
        return [json_ready(value) for value in content]
    if isinstance(content, float):
        return content if math.isfinite(content) else None
    if content is None or isinstance(content, (bool, int, str)):
        return content
    if hasattr(content, "tolist"):  # arrays and scalars of numpy and torch
        return json_ready(content.tolist())
    return str(content)
