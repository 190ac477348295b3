"""What the tests of the explorer share: loaded models, and states as the page sends them."""

import functools
from typing import Any

from antiphase.explorer.models import ExploredModel, ModelShelf, load_model, model_entry
from antiphase.explorer.state import State, parse_state
from antiphase.explorer.view import Viewer

SHIPPED = ("diff_v1", "diff_v2", "standard")


@functools.cache
def shipped(name: str) -> ExploredModel:
    """Return a shipped model, loaded once."""
    return load_model(model_entry(name), None)


def viewer(*names: str, **options: Any) -> Viewer:
    """Return a viewer of some models; default: the shipped ones."""
    return Viewer(ModelShelf([model_entry(name) for name in names or SHIPPED]), **options)


def state(**fields: str) -> State:
    """Return the state of an address; an underscore stands for the dot of a.head."""
    named = {name.replace("_", "."): value for name, value in fields.items()}
    return parse_state(named, dict.fromkeys(SHIPPED), "diff_v1")
