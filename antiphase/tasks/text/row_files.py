"""Rows with a column `text`: JSON lines, Parquet files and datasets; and compressed files."""

import contextlib
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

COLUMN = "text"
SUFFIXES = {".jsonl", ".parquet"}
_ROWS = 256  # rows of a Parquet file that are read at once


def rows(kind: str, place: str, start: int, stop: int | None) -> Iterator[tuple[int, str]]:
    """Yield the texts of rows, each with its place; rows whose text is null are left out.

    Args:
        kind: "jsonl", "parquet" or "dataset".
        place: path of the file, or name of the dataset.
        start: first byte, row group or shard.
        stop: the first byte or row group after them, None for the end; number of shards.

    Raises:
        ValueError: the rows cannot be read, or have no text.
    """
    if kind == "jsonl":
        yield from _json_rows(Path(place), start, stop)
    elif kind == "parquet":
        yield from _parquet_rows(Path(place), start, stop)
    else:
        yield from _dataset_rows(place, start)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading; a compressed one (.zst, .gz) as what is inside.

    Raises:
        ValueError: it cannot be opened, or pyarrow, which decompresses, is missing.
    """
    try:
        with contextlib.ExitStack() as stack:
            file: Any = stack.enter_context(path.open("rb"))
            if path.suffix in (".zst", ".gz"):
                kind = {".zst": "zstd", ".gz": "gzip"}[path.suffix]
                file = stack.enter_context(_pyarrow(path).CompressedInputStream(file, kind))
            yield file
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror or error})") from error


def read(file: BinaryIO, count: int, path: Path) -> bytes:
    """Read up to so many bytes; fewer at the end of the file only.

    Raises:
        ValueError: the file is damaged.
    """
    parts = []
    try:
        while count > 0 and (part := file.read(count)):
            parts.append(part)
            count -= len(part)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error})") from error
    return b"".join(parts)


def row_groups(path: Path) -> list[int]:
    """Return the size in bytes of each row group of a Parquet file."""
    with _parquet(path) as file:
        about = file.metadata
        return [about.row_group(i).total_byte_size for i in range(about.num_row_groups)]


def dataset_shards(name: str) -> int:
    """Return the number of files of a dataset's training split.

    Args:
        name: `NAME` or `NAME:CONFIGURATION`.

    Raises:
        ValueError: there is no such dataset, or `datasets` is not installed.
    """
    return int(_dataset(name).num_shards)


def require_datasets(source: str) -> None:
    """Raise unless the `datasets` package, which also brings pyarrow, is installed."""
    _require("datasets", source)


def _json_rows(path: Path, start: int, stop: int | None) -> Iterator[tuple[int, str]]:
    at, rest = start, b""
    with opened(path) as file:
        if start:
            file.seek(start)
        while True:
            want = 1 << 20 if stop is None else min(1 << 20, stop - at - len(rest))
            block = read(file, want, path)
            *lines, rest = (rest + block).split(b"\n")
            if not block and rest:
                lines, rest = [rest], b""
            for line in lines:
                if line.strip():
                    yield from _json_row(line, path, at)
                at += len(line) + 1
            if not block:
                return


def _json_row(line: bytes, path: Path, at: int) -> Iterator[tuple[int, str]]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{path}: the row at byte {at} is not JSON ({error})") from error
    yield from _text_of(row if isinstance(row, dict) else {}, str(path), at)


@contextlib.contextmanager
def _parquet(path: Path) -> Iterator[Any]:
    _require("pyarrow", str(path))
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            yield file
    except (OSError, pyarrow.ArrowException) as error:
        raise ValueError(f"{path}: cannot be read as Parquet ({error})") from error


def _parquet_rows(path: Path, start: int, stop: int | None) -> Iterator[tuple[int, str]]:
    with _parquet(path) as file:
        columns = file.schema_arrow.names
        if COLUMN not in columns:
            raise _no_text(str(path), columns)
        groups = range(start, file.metadata.num_row_groups if stop is None else stop)
        place = sum(file.metadata.row_group(i).num_rows for i in range(start))
        for batch in file.iter_batches(_ROWS, row_groups=list(groups), columns=[COLUMN]):
            for text in batch.column(0).to_pylist():
                yield from _text_of({COLUMN: text}, str(path), place)
                place += 1


def _dataset(name: str) -> Any:
    _require("datasets", f"datasets:{name}")
    import datasets

    path, _, configuration = name.partition(":")
    try:
        return datasets.load_dataset(path, configuration or None, split="train", streaming=True)
    except (OSError, ValueError) as error:
        raise ValueError(f"datasets:{name}: cannot be loaded ({error})") from error


def _dataset_rows(name: str, shard: int) -> Iterator[tuple[int, str]]:
    found = _dataset(name)
    if found.num_shards > 1:
        found = found.shard(num_shards=found.num_shards, index=shard)
    for i, row in enumerate(found):
        yield from _text_of(row, f"datasets:{name}", i)


def _text_of(row: dict[str, Any], source: str, place: int) -> Iterator[tuple[int, str]]:
    if COLUMN not in row:
        raise _no_text(source, list(row))
    text = row[COLUMN]
    if text is None:
        return
    if not isinstance(text, str):
        raise ValueError(
            f"{source}: row {place} has a {type(text).__name__} as {COLUMN!r}, expected a string"
        )
    try:
        text.encode()
    except UnicodeEncodeError:  # JSON can hold halves of surrogate pairs
        text = text.encode("utf-8", errors="replace").decode()
    yield place, text


def _no_text(source: str, columns: list[str]) -> ValueError:
    having = f"they have {', '.join(columns)}" if columns else "they are no objects"
    return ValueError(f"{source}: its rows have no {COLUMN!r}; {having}")


def _pyarrow(path: Path) -> Any:
    _require("pyarrow", str(path))
    import pyarrow

    return pyarrow


def _require(package: str, source: str) -> None:
    try:
        found = importlib.util.find_spec(package) is not None
    except ValueError:  # it was marked as missing
        found = False
    if not found:
        raise ValueError(f"{source}: needs the `{package}` package; pip install 'antiphase[text]'")
