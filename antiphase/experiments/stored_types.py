"""Values read from a file, checked against the types of the dataclasses that hold them."""

import re
import types
from collections.abc import Iterator
from dataclasses import is_dataclass
from itertools import chain, repeat
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # characters that a terminal would obey
_SHOWN = 60  # characters of a value in an error


def require_type(where: str, value: Any, hint: Any) -> None:
    """Raise unless a value, and everything in it, has the type of its hint.

    Args:
        where: what is checked, for the error.
        value: of plain types and dataclasses. Text must have no control characters.
        hint: as `get_type_hints` returns it; everything in an Any is plain data.

    Raises:
        ValueError: says which field has what, and what was expected.
    """
    fault = next(_faults(where, value, hint), None)
    if fault is not None:
        raise ValueError(fault)


def _faults(where: str, value: Any, hint: Any) -> Iterator[str]:
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        hint = type(value)
        origin, inner = (hint, (Any, Any)) if hint in (list, dict) else (None, ())
    if origin in (Union, types.UnionType):
        found = [next(_faults(where, value, choice), None) for choice in inner]
        if None not in found:
            yield _fault(where, value, hint)
    elif is_dataclass(hint) and isinstance(value, hint):  # type: ignore[arg-type]
        for name, kind in get_type_hints(hint).items():
            yield from _faults(f"{where}.{name}", getattr(value, name), kind)
    elif origin is list and isinstance(value, list):
        yield from _each(where, value, repeat(inner[0]))
    elif origin is tuple and isinstance(value, tuple):
        kinds = repeat(inner[0]) if inner[-1] is ... else inner
        yield from _each(where, value, kinds)
    elif origin is dict and isinstance(value, dict):
        yield from _each(f"{where}, name", value, repeat(inner[0]))
        for name, entry in value.items():
            yield from _faults(f"{where}[{name!r:.{_SHOWN}}]", entry, inner[1])
    elif not _is_plain(value, hint, origin, inner):
        yield _fault(where, value, hint)


def _each(where: str, values: Any, kinds: Any) -> Iterator[str]:
    pairs = enumerate(zip(values, kinds, strict=False))
    return chain.from_iterable(_faults(f"{where}[{i}]", v, kind) for i, (v, kind) in pairs)


def _is_plain(value: Any, hint: Any, origin: Any, inner: tuple[Any, ...]) -> bool:
    if origin is Literal:
        return value in inner
    if hint is float:
        return type(value) in (int, float)
    if hint is str:
        return type(value) is str and not _CONTROL.search(value)
    return hint in (bool, int, type(None)) and type(value) is hint


def _fault(where: str, value: Any, hint: Any) -> str:
    expected = getattr(hint, "__name__", None) if get_origin(hint) is None else str(hint)
    return f"{where}: got {value!r:.{_SHOWN}}, expected {expected}"
