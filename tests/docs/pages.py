"""The documentation's files, and the scripts beside them that are no part of the package."""

import importlib.util
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/**/*.md", "examples/*.md")
    for path in ROOT.glob(pattern)
)


def text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def script(name: str) -> ModuleType:
    """Return a script of the docs folder as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
