"""The state of a view: what the address bar holds, parsed and validated.

An address is names and values after the #, so that a link reproduces a view:

    #view=map&a=diff_v1&a.head=1.2&a.lam=1.5&a.edits=1.0:off&task=needle&length=64&example=3

`a` and `b` are the two models; everything that starts with their letter belongs to them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from antiphase.explorer.edits import Edits, parse_edits, parse_factors
from antiphase.options import nearest

SLOTS = ("a", "b")
TASK_FIELDS = ("task", "length", "depth", "noise", "near", "needles", "seed", "example")
PAGE_FIELDS = ("view", "map", "test", "reading", "run")  # only the page itself reads them
MAX_VALUE = 200  # characters of every value but the text


@dataclass(frozen=True)
class Drawn:
    """Which example of a synthetic task to draw; None for the default of the model's task.

    Attributes:
        task: name of the task.
        length: tokens of the sequence.
        depth: position of the queried needle, 0 (start) to 1 (end).
        noise: fraction of the free slots that hold distractors.
        near: fraction of the distractors whose key could be that of a needle.
        needles: number of needles; of many_shot, number of classes.
        seed: other seeds give other examples.
        example: index of the example.
    """

    task: str | None = None
    length: int | None = None
    depth: float | None = None
    noise: float | None = None
    near: float | None = None
    needles: int | None = None
    seed: int = 0
    example: int = 0


@dataclass(frozen=True)
class Slot:
    """One of the models of a view.

    Attributes:
        name: of the model, as on the command line.
        step: milestone of its run; None for the end.
        head: layer and head; None for the head with the most weight on the answer.
        edits: of its noise maps.
    """

    name: str
    step: int | None = None
    head: tuple[int, int] | None = None
    edits: Edits = field(default_factory=Edits)


@dataclass(frozen=True)
class State:
    """What is shown: one or two models on the same text or example.

    Attributes:
        slots: the models.
        text: to show; None for an example of a task.
        drawn: which example.
        row: position of the query; None for the row that predicts the answer.
    """

    slots: tuple[Slot, ...]
    text: str | None = None
    drawn: Drawn = field(default_factory=Drawn)
    row: int | None = None


def parse_state(fields: object, models: Mapping[str, object], first: str) -> State:
    """Return the state that an address describes.

    Args:
        fields: names and values of the address; from a browser, so anything.
        models: that were named on the command line.
        first: the model to show if the address names none.

    Raises:
        ValueError: a field is unknown or has an invalid value; says what is allowed.
    """
    values = _strings(fields)
    slots = [
        _slot(letter, values, models)
        for letter in SLOTS
        if values.get(letter) or (letter == "a" and values.setdefault("a", first))
    ]
    depth, noise, near = (_fraction(name, values) for name in ("depth", "noise", "near"))
    return State(
        tuple(slots),
        values.get("text"),
        Drawn(
            values.get("task"),
            _whole("length", values),
            depth,
            noise,
            near,
            _whole("needles", values),
            _whole("seed", values) or 0,
            _whole("example", values) or 0,
        ),
        _whole("row", values),
    )


def _strings(fields: object) -> dict[str, str]:
    if not isinstance(fields, dict):
        raise ValueError(f"state: got {type(fields).__name__}, expected names and values")
    of_slots = [f"{letter}{end}" for letter in SLOTS for end in ("", ".step", ".head", ".lam")]
    of_slots += [f"{letter}.edits" for letter in SLOTS]
    allowed = [*of_slots, "text", "row", *TASK_FIELDS, *PAGE_FIELDS]
    found: dict[str, str] = {}
    for name, value in fields.items():
        if name not in allowed:
            raise ValueError(
                f"state: has no field {str(name)[:40]!r}; its fields are {', '.join(allowed)}"
                f"{nearest(str(name)[:40], allowed)}"
            )
        if not isinstance(value, str):
            raise ValueError(f"{name}: got {type(value).__name__}, expected a string")
        if len(value) > MAX_VALUE and name != "text":
            raise ValueError(
                f"{name}: has {len(value)} characters, at most {MAX_VALUE} are allowed"
            )
        if value:
            found[name] = value
    return found


def _slot(letter: str, values: Mapping[str, str], models: Mapping[str, object]) -> Slot:
    name = values[letter]
    if name not in models:
        raise ValueError(
            f"{letter}: got {name!r}, which is no model of this explorer; models are named on the "
            f"command line: {', '.join(models)}{nearest(name, models)}"
        )
    edits = Edits(
        parse_factors(f"{letter}.lam", values.get(f"{letter}.lam", "")),
        parse_edits(f"{letter}.edits", values.get(f"{letter}.edits", "")),
    )
    head = _place(f"{letter}.head", values)
    return Slot(name, _whole(f"{letter}.step", values), head, edits)


def _place(name: str, values: Mapping[str, str]) -> tuple[int, int] | None:
    value = values.get(name)
    if value is None:
        return None
    layer, _, head = value.partition(".")
    if not (_is_whole(layer) and _is_whole(head)):
        raise ValueError(f"{name}: got {value!r}, expected LAYER.HEAD, such as 1.2")
    return int(layer), int(head)


def _whole(name: str, values: Mapping[str, str]) -> int | None:
    value = values.get(name)
    if value is None:
        return None
    if not _is_whole(value):
        raise ValueError(f"{name}: got {value!r}, expected a whole number of at most 9 digits")
    return int(value)


def _is_whole(value: str) -> bool:
    return value.isascii() and value.isdigit() and len(value) <= 9


def _fraction(name: str, values: Mapping[str, str]) -> float | None:
    value = values.get(name)
    if value is None:
        return None
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1:
        raise ValueError(f"{name}: got {value!r}, expected a number from 0 to 1")
    return number
