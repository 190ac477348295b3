"""Options from users (commands, YAML, keywords), validated against the fields of a dataclass."""

import difflib
import types
from collections.abc import Iterable, Mapping
from dataclasses import fields
from numbers import Integral, Real
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}


def build(what: str, kind: type[T], given: Mapping[str, Any]) -> T:
    """Construct a dataclass from options.

    Args:
        what: what the options belong to, for the errors: "mechanism 'diff_v1'".
        kind: the dataclass; its field types say what is allowed, its `__post_init__` may say more.
        given: values by field name, as keywords or YAML give them.

    Returns:
        `kind(**given)`, each value converted to its field's type as in `fitted`.

    Raises:
        ValueError: an unknown name or an invalid value; says what was given and what is allowed.
    """
    allowed = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    hints = get_type_hints(kind)
    for name in given:
        if name not in allowed:
            known = f"its options are {', '.join(allowed)}" if allowed else "it has no options"
            raise ValueError(f"{what} has no option {name!r}; {known}{nearest(name, allowed)}")
    try:
        return kind(**{name: fitted(name, value, hints[name]) for name, value in given.items()})
    except ValueError as error:
        raise ValueError(f"{what}, {error}") from error


def fitted(name: str, value: Any, hint: Any) -> Any:
    """Return a value as its type hint wants it.

    Args:
        name: of the option, for the error.
        value: as given; 1 and "1e-3" are accepted for a float, 8.5 is not for an int.
        hint: the type: bool, int, float, str, None, Literal, list, dict, or a union of them.

    Returns:
        The value, converted where its type differs.

    Raises:
        ValueError: the value does not fit; says what was given and what is allowed.
    """
    for choice in get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,):
        try:
            return _fit(value, choice)
        except TypeError:
            continue
    raise ValueError(f"{name}: got {value!r}, expected {_words(hint)}")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" for the known name nearest to a misspelt one, or ""."""
    found = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {found[0]!r}?" if found else ""


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
    """Return the string "1e-3" as a number: YAML reads it as a string, because it has no dot."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _words(hint: Any) -> str:
    """Return a type hint in words, for an error."""
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
