"""Options given by people (commands, YAML, keywords) as the fields of a dataclass, checked."""

import types
from collections.abc import Mapping
from dataclasses import fields
from numbers import Integral, Real
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def build(what: str, kind: type[T], given: Mapping[str, Any]) -> T:
    """Return `kind(**given)`, each value of its field's type; name what is allowed otherwise."""
    allowed = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    hints = get_type_hints(kind)
    for name in given:
        if name not in allowed:
            known = f"its options are {', '.join(allowed)}" if allowed else "it has no options"
            raise ValueError(f"{what} has no option {name!r}; {known}")
    try:
        return kind(**{name: fitted(name, value, hints[name]) for name, value in given.items()})
    except ValueError as error:
        raise ValueError(f"{what}, {error}") from error


def fitted(name: str, value: Any, hint: Any) -> Any:
    """Return a value as its type wants it: 1 and "1e-3" are numbers, 8.5 is no whole one."""
    for choice in get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,):
        try:
            return _fit(value, choice)
        except TypeError:
            continue
    raise ValueError(f"{name}: got {value!r}, expected {_words(hint)}")


def _fit(value: Any, hint: Any) -> Any:
    origin = get_origin(hint) or hint
    if hint is Any or (hint is type(None) and value is None):
        return value
    if origin is Literal and value in get_args(hint):
        return value
    if origin is list and isinstance(value, (list, tuple)):
        return [_fit(v, (get_args(hint) or (Any,))[0]) for v in value]
    if origin is dict and isinstance(value, dict):
        return dict(value)
    if hint in (bool, str) and isinstance(value, hint):
        return value
    if hint is int and isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    if hint is float and not isinstance(value, bool):
        value = _number(value)
        if isinstance(value, Real):
            return float(value)
    raise TypeError


def _number(value: Any) -> Any:
    """Return `1e-3` as the number that YAML does not see in it without a dot."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _words(hint: Any) -> str:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(_words(choice) for choice in get_args(hint))
    if origin is Literal:
        return " or ".join(map(repr, get_args(hint)))
    if origin is list:
        return f"a list, each {_words(get_args(hint)[0])}"
    if hint is type(None):
        return "nothing"
    return _WORDS.get(hint, "names and their values")
