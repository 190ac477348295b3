"""The API reference: a hook of MkDocs that turns a comment into the public names of a module.

A page holds `<!-- api: antiphase.ops -->`, which a reader on GitHub does not see. On the site it
becomes the reference of every name in that module's `__all__` (or, without `__all__`, of every
public function and class that the module defines). `<!-- api-index: antiphase -->` becomes a table
of links. A public name without a docstring is a warning, and `mkdocs build --strict` fails on it.
"""

import importlib
import inspect
import logging
import re
from collections.abc import Callable
from typing import Any

log = logging.getLogger("mkdocs.hooks.api_reference")
MARKER = re.compile(r"<!-- (api|api-index): ([\w.]+) -->")
_documented: set[str] = set()  # a name that two modules export is described once


def on_pre_build(**_: Any) -> None:
    """Forget the build before, when the site is served."""
    _documented.clear()


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace the comments of a page."""
    for problem in problems(markdown):
        log.warning("%s: %s", page.file.src_uri, problem)
    return MARKER.sub(lambda found: _EXPAND[found[1]](found[2]), markdown)


def public_names(module_name: str) -> list[str]:
    """Return the public names of a module.

    Args:
        module_name: the module's full name, such as "antiphase.ops".

    Returns:
        Its `__all__`, or without one the functions and classes that it defines itself.
    """
    module = importlib.import_module(module_name)
    if hasattr(module, "__all__"):
        return list(module.__all__)
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and getattr(value, "__module__", None) == module_name
        and (inspect.isfunction(value) or inspect.isclass(value))
    ]


def problems(markdown: str) -> list[str]:
    """Return what a page lacks: docstrings, or the description of a constant.

    Args:
        markdown: the page's text, with its comments.

    Returns:
        One sentence for every public name that is not documented.
    """
    found = []
    for kind, module_name in MARKER.findall(markdown):
        module = importlib.import_module(module_name)
        for name in public_names(module_name) if kind == "api" else []:
            value = getattr(module, name)
            if _is_constant(value):
                if f"`{name}`" not in markdown:  # a constant has no docstring of its own
                    found.append(f"{module_name}.{name} is not described on its page")
            elif not inspect.getdoc(value):
                found.append(f"{module_name}.{name} has no docstring")
    return found


def _reference(module_name: str) -> str:
    """Return mkdocstrings' directive for every public name, where the name is defined."""
    module = importlib.import_module(module_name)
    lines = []
    for name in public_names(module_name):
        value = getattr(module, name)
        if _is_constant(value):  # described in the page's text
            continue
        path = f"{value.__module__}.{value.__qualname__}"
        if path not in _documented:
            _documented.add(path)
            lines.append(f"::: {path}\n")
    return "\n".join(lines)


def _index(module_name: str) -> str:
    """Return a table: every public name with the first sentence of its docstring."""
    module = importlib.import_module(module_name)
    lines = ["| name | what it is |", "|---|---|"]
    for name in public_names(module_name):
        value = getattr(module, name)
        if not _is_constant(value):
            first = (inspect.getdoc(value) or "").split("\n\n")[0].replace("\n", " ")
            first = first.replace("|", "\\|")
            lines.append(f"| [`{name}`][{value.__module__}.{value.__qualname__}] | {first} |")
    return "\n".join(lines)


def _is_constant(value: Any) -> bool:
    home = getattr(value, "__module__", None) or ""
    described = inspect.isclass(value) or inspect.isfunction(value)
    return not (described and home.startswith("antiphase"))


_EXPAND: dict[str, Callable[[str], str]] = {"api": _reference, "api-index": _index}
