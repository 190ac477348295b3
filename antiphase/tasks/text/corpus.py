"""Texts to train on: files, globs, folders, a `datasets` name, or Python's own standard library.

Documents come in a fixed order, each with its name, so that the same sources give the same corpus;
its hash and counts go into the manifest of everything made from it.
"""

import glob
import hashlib
import platform
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BUILTIN = "stdlib"
HUB = "datasets:"
_SUFFIXES = {".txt", ".md", ".rst", ".py", ".json", ".jsonl", ".csv", ".html", ".tex"}
_LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}


@dataclass(frozen=True)
class Document:
    """One text and where it came from."""

    name: str
    text: str


def documents(sources: Iterable[str]) -> Iterator[Document]:
    """Return every document of the sources, in a fixed order."""
    for source in sources:
        if source == BUILTIN:
            yield from _standard_library()
        elif source.startswith(HUB):
            yield from _hub(source.removeprefix(HUB))
        else:
            yield from _files(source)


def manifest(sources: Iterable[str]) -> dict[str, Any]:
    """Return what a corpus is: its sources, counts and hash; refuse one without text."""
    sources = list(sources)
    digest, count, size = hashlib.sha256(), 0, 0
    for document in documents(sources):
        data = document.text.encode("utf-8", errors="surrogatepass")
        for part in (document.name.encode(), data):
            digest.update(len(part).to_bytes(8, "little") + part)
        count, size = count + 1, size + len(data)
    if not size:
        raise ValueError(f"text: no text in {', '.join(sources) or 'nothing'}")
    found: dict[str, Any] = {
        "sources": sources,
        "documents": count,
        "bytes": size,
        "sha256": digest.hexdigest(),
    }
    if BUILTIN in sources:
        found["python"] = platform.python_version()
    return found


def _standard_library() -> Iterator[Document]:
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root)
        if not _LEFT_OUT & set(inside.parts[:-1]):
            yield Document(inside.as_posix(), _read(path, errors="replace"))


def _files(source: str) -> Iterator[Document]:
    path = Path(source)
    if path.is_dir():
        paths = [p for p in sorted(path.rglob("*")) if p.is_file() and p.suffix in _SUFFIXES]
        if not paths:
            raise ValueError(f"{source}: no text files in it ({', '.join(sorted(_SUFFIXES))})")
    elif path.is_file():
        paths = [path]
    else:
        paths = [Path(p) for p in sorted(glob.glob(source, recursive=True)) if Path(p).is_file()]
        if not paths:
            raise ValueError(f"{source}: is no file, folder or glob that matches a file")
    for p in paths:
        yield Document(p.as_posix(), _read(p))


def _read(path: Path, errors: str = "strict") -> str:
    try:
        return path.read_text(encoding="utf-8", errors=errors)
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}: is not UTF-8 text ({error.reason} at byte {error.start})"
        ) from error
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from error


def _hub(name: str) -> Iterator[Document]:
    """Return the texts of `NAME` or `NAME:CONFIGURATION`, its training part."""
    try:
        import datasets
    except ImportError as error:
        raise ValueError(
            f"{HUB}{name}: needs the `datasets` package; pip install 'antiphase[text]'"
        ) from error
    path, _, configuration = name.partition(":")
    try:
        rows = datasets.load_dataset(path, configuration or None, split="train")
    except (OSError, ValueError) as error:
        raise ValueError(f"{HUB}{name}: cannot be loaded ({error})") from error
    for i, row in enumerate(rows):
        if "text" not in row:
            raise ValueError(f"{HUB}{name}: its rows have no 'text'; they have {', '.join(row)}")
        yield Document(f"{name}/{i}", row["text"])
