"""Sources of text, as documents in a fixed order.

    notes.txt   a/*.md   books/          text files: one document each
    rows.jsonl.zst   part-*.parquet      rows with a column `text`: one document each
    datasets:NAME[:CONFIGURATION]        the training split of a dataset, streamed
    stdlib                               Python's standard library
    prose                                English prose (`antiphase data prose`)

A source is divided into spans, each of which is read without those before it: many processes read
one corpus, and none holds it. Files may be compressed (.zst, .gz).
"""

import glob
import hashlib
import json
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from antiphase.tasks.text import row_files
from antiphase.tasks.text.prose import PROSE, prose_files

BUILTIN = "stdlib"
HUB = "datasets:"
BLOCK = 1 << 24  # bytes of a text file that are one document at most
_TEXT = {".txt", ".md", ".rst", ".py", ".json", ".csv", ".html", ".tex"}
_SUFFIXES = _TEXT | row_files.SUFFIXES
_COMPRESSED = {".zst", ".gz"}
_EXCLUDED = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
_LINE = 1 << 20  # bytes after a block's end in which a line break is searched


@dataclass(frozen=True)
class Document:
    """One document and the name of where it came from."""

    name: str
    text: str


@dataclass(frozen=True)
class Span:
    """A part of a source that is read on its own.

    Attributes:
        kind: "text", "jsonl", "parquet" or "dataset".
        place: path of the file, or name of the dataset.
        name: of the documents in it.
        start: first byte of a file, first row group of a Parquet file, number of a dataset's shard.
        stop: the first after them; of a dataset, its number of shards. None: to the end.
        size: bytes, as far as it is known.
        errors: how bytes that are not UTF-8 are treated, as in `bytes.decode`.
    """

    kind: str
    place: str
    name: str
    start: int = 0
    stop: int | None = None
    size: int = 0
    errors: str = "strict"

    def documents(self) -> Iterator[Document]:
        """Yield the documents of this span.

        Raises:
            ValueError: it cannot be read, is not UTF-8, or has rows without text.
        """
        if self.kind == "text":
            yield from self._texts()
            return
        rows = row_files.rows(self.kind, self.place, self.start, self.stop)
        for place, text in rows:
            yield Document(f"{self.name}/{place}", text)

    def _texts(self) -> Iterator[Document]:
        path, at, rest = Path(self.place), self.start, b""
        with row_files.opened(path) as file:
            if at:
                file.seek(at)
            while True:
                want = BLOCK if self.stop is None else self.stop - at - len(rest)
                block = rest + row_files.read(file, want, path)
                last = self.stop is not None or len(block) < BLOCK
                cut = len(block) if last else _cut(block)
                if cut or at == self.start:
                    yield Document(self.name, self._decode(block[:cut], at))
                if last:
                    return
                at, rest = at + cut, block[cut:]

    def _decode(self, data: bytes, at: int) -> str:
        try:
            text = data.decode("utf-8", errors=self.errors)
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{self.place}: is not UTF-8 text ({error.reason} at byte {at + error.start})"
            ) from error
        return text.replace("\r\n", "\n").replace("\r", "\n")


def documents(sources: Iterable[str]) -> Iterator[Document]:
    """Yield every document of the sources, in a fixed order.

    Args:
        sources: files, globs, folders, `stdlib`, `prose`, or `datasets:NAME[:CONFIGURATION]`.

    Raises:
        ValueError: a source does not exist, has no text, or is not UTF-8.
    """
    for span in spans(sources):
        yield from span.documents()


def spans(sources: Iterable[str]) -> Iterator[Span]:
    """Yield the spans of the sources, in a fixed order, reading as little as possible.

    Args:
        sources: as in `documents`.

    Raises:
        ValueError: a source does not exist.
    """
    for source in sources:
        if source == BUILTIN:
            root = _library()
            for path in _library_files():
                name = path.relative_to(root).as_posix()
                size = path.stat().st_size
                yield Span("text", str(path), name, 0, size, size, errors="replace")
        elif source.startswith(HUB):
            name = source.removeprefix(HUB)
            count = row_files.dataset_shards(name)
            for i in range(count):
                yield Span("dataset", name, name, i, count)
        else:
            for path in _paths(source):
                yield from _spans_of_file(path)


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
            row_files.require_datasets(source)
        elif source != BUILTIN:
            _paths(source)


def sources_key(sources: Iterable[str]) -> str:
    """Return what tells the sources from others, without reading them.

    Of files, their paths, sizes and times of change; of a dataset on a hub, its name.

    Raises:
        ValueError: a source does not exist.
    """
    found: list[object] = []
    for source in sources:
        if source == BUILTIN:
            files = _library_files()
        elif source.startswith(HUB):
            found.append(source)
            folder = Path(source.removeprefix(HUB).partition(":")[0])
            files = [p for p in sorted(folder.rglob("*")) if p.is_file()]
        else:
            files = _paths(source)
        for path in files:
            about = path.stat()
            found.append((str(path.absolute()), about.st_size, about.st_mtime_ns))
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()


def _library() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def _library_files() -> list[Path]:
    root = _library()
    return [
        path
        for path in sorted(root.rglob("*.py"))
        if not _EXCLUDED & set(path.relative_to(root).parts[:-1])
    ]


def _kind(path: Path) -> str:
    """Return "text", "jsonl" or "parquet", by the suffix before that of the compression."""
    suffix = _inner_suffix(path)
    return suffix[1:] if suffix in row_files.SUFFIXES else "text"


def _inner_suffix(path: Path) -> str:
    return Path(path.stem).suffix if path.suffix in _COMPRESSED else path.suffix


def _paths(source: str) -> list[Path]:
    """Return the files of a folder, a file's path or a glob, sorted."""
    if source == PROSE:
        return prose_files()
    if not source:  # pathlib takes it for the current folder
        raise ValueError(
            "text: got an empty name; give a file, a folder (. for this one) or a glob"
        )
    path = Path(source)
    if path.is_dir():
        paths = [p for p in sorted(path.rglob("*")) if p.is_file() and _has_text(p)]
        if not paths:
            raise ValueError(f"{source}: no text files in it ({', '.join(sorted(_SUFFIXES))})")
        return paths
    if path.is_file():
        return [path]
    paths = [Path(p) for p in sorted(glob.glob(source, recursive=True)) if Path(p).is_file()]
    if not paths:
        raise ValueError(f"{source}: is no file, folder or glob that matches a file")
    return paths


def _has_text(path: Path) -> bool:
    return _inner_suffix(path) in _SUFFIXES


def _spans_of_file(path: Path) -> Iterator[Span]:
    kind, name, size = _kind(path), path.as_posix(), path.stat().st_size
    place = str(path.absolute())
    if kind == "parquet":
        for i, bytes_of_group in enumerate(row_files.row_groups(path)):
            yield Span(kind, place, name, i, i + 1, bytes_of_group)
        return
    if path.suffix in _COMPRESSED:  # can only be read from its beginning
        yield Span(kind, place, name, size=4 * size)
        return
    with row_files.opened(path) as file:
        start = 0
        while start < size or start == 0:
            stop = min(size, start + BLOCK)
            if stop < size:
                file.seek(stop)
                window = file.readline() if kind == "jsonl" else file.read(_LINE)
                stop += _line_start(window) if kind == "text" else len(window)
            yield Span(kind, place, name, start, stop, stop - start)
            start = max(stop, 1)


def _line_start(window: bytes) -> int:
    """Return the start of a line, or at least of a character."""
    found = window.find(b"\n") + 1
    if found:
        return found
    return next((i for i, byte in enumerate(window[:4]) if byte & 0xC0 != 0x80), 0)


def _cut(block: bytes) -> int:
    """Return where to end a block: after its last line break, or before an open character."""
    found = block.rfind(b"\n") + 1
    if found:
        return found
    end = len(block)
    return next((end - i for i in range(1, 5) if block[-i] & 0xC0 != 0x80), end)
