"""Sources of text: files, globs, folders, a `datasets` name, Python's standard library, or prose.

Documents come in a fixed order, each with its name, so that the same sources give the same corpus.
Its hash and counts are in the manifest of every packed corpus and run that uses it.
"""

import glob
import hashlib
import importlib.util
import platform
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from antiphase.tasks.text.prose import PROSE, prose_documents, require_prose

BUILTIN = "stdlib"
HUB = "datasets:"
_SUFFIXES = {".txt", ".md", ".rst", ".py", ".json", ".jsonl", ".csv", ".html", ".tex"}
_EXCLUDED = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}


@dataclass(frozen=True)
class Document:
    """One document and the name of where it came from."""

    name: str
    text: str


def documents(sources: Iterable[str]) -> Iterator[Document]:
    """Yield every document of the sources, in a fixed order.

    Args:
        sources: files, globs, folders, `stdlib`, `prose`, or `datasets:NAME[:CONFIGURATION]`.

    Raises:
        ValueError: a source does not exist, has no text, or is not UTF-8.
    """
    for source in sources:
        if source == BUILTIN:
            yield from _standard_library()
        elif source == PROSE:
            yield from (Document(name, text) for name, text in prose_documents())
        elif source.startswith(HUB):
            yield from _hub_dataset(source.removeprefix(HUB))
        else:
            for path in _paths(source):
                yield Document(path.as_posix(), _read(path))


def require_sources(sources: Iterable[str]) -> None:
    """Raise if a source does not exist, without reading any text.

    Args:
        sources: as in `documents`.

    Raises:
        ValueError: a path or glob matches no file, the prose is not installed, or the `datasets`
            package is missing.
    """
    for source in sources:
        if source.startswith(HUB):
            _require_datasets(source)
        elif source == PROSE:
            require_prose()
        elif source != BUILTIN:
            _paths(source)


def manifest(sources: Iterable[str]) -> dict[str, Any]:
    """Return the description of a corpus: its sources, counts and hash.

    Raises:
        ValueError: the corpus has no text.
    """
    sources = list(sources)
    digest, count, size = hashlib.sha256(), 0, 0
    for document in documents(sources):
        data = document.text.encode("utf-8", errors="surrogatepass")
        for part in (document.name.encode(), data):
            digest.update(len(part).to_bytes(8, "little") + part)
        count, size = count + 1, size + len(data)
    if not size:
        raise ValueError(f"text: no text in {', '.join(sources) or 'an empty list of sources'}")
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
        if not _EXCLUDED & set(inside.parts[:-1]):
            yield Document(inside.as_posix(), _read(path, errors="replace"))


def _paths(source: str) -> list[Path]:
    """Return the files of a folder, a file's path or a glob, sorted."""
    path = Path(source)
    if path.is_dir():
        paths = [p for p in sorted(path.rglob("*")) if p.is_file() and p.suffix in _SUFFIXES]
        if not paths:
            raise ValueError(f"{source}: no text files in it ({', '.join(sorted(_SUFFIXES))})")
        return paths
    if path.is_file():
        return [path]
    paths = [Path(p) for p in sorted(glob.glob(source, recursive=True)) if Path(p).is_file()]
    if not paths:
        raise ValueError(f"{source}: is no file, folder or glob that matches a file")
    return paths


def _read(path: Path, errors: str = "strict") -> str:
    try:
        return path.read_text(encoding="utf-8", errors=errors)
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}: is not UTF-8 text ({error.reason} at byte {error.start})"
        ) from error
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from error


def _hub_dataset(name: str) -> Iterator[Document]:
    """Yield the rows of the training split of `NAME` or `NAME:CONFIGURATION`."""
    _require_datasets(f"{HUB}{name}")
    import datasets

    path, _, configuration = name.partition(":")
    try:
        rows = datasets.load_dataset(path, configuration or None, split="train")
    except (OSError, ValueError) as error:
        raise ValueError(f"{HUB}{name}: cannot be loaded ({error})") from error
    for i, row in enumerate(rows):
        if "text" not in row:
            raise ValueError(f"{HUB}{name}: its rows have no 'text'; they have {', '.join(row)}")
        yield Document(f"{name}/{i}", row["text"])


def _require_datasets(source: str) -> None:
    try:
        found = importlib.util.find_spec("datasets") is not None
    except ValueError:  # it was marked as missing
        found = False
    if not found:
        raise ValueError(f"{source}: needs the `datasets` package; pip install 'antiphase[text]'")
