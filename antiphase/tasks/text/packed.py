"""A packed corpus on disk: shards of token ids, their index, and one stream of tokens per split.

plan.json              sources, tokenizer, and the parts of the corpus: one per shard
tokenizer.json, ...    the tokenizer
shards/00007.train.bin token ids of the documents of part 7 that are for training
shards/00007.json      counts and checksums of part 7: written last, so the shard is complete
manifest.json          the corpus: its statistics and the index of all shards; written last
"""

import hashlib
import json
import os
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SPLIT_PERCENTILES = {"train": range(4, 100), "validation": range(2, 4), "test": range(2)}
PLAN, MANIFEST, SHARDS = "plan.json", "manifest.json", "shards"
OPEN_FILES = 64  # memory-mapped at a time


class ShardedTokens:
    """The token ids of a split, [N], memory-mapped from the files of its shards.

    Args:
        files: with the number of tokens in each, in order.
        dtype: of the token ids.
    """

    def __init__(self, files: list[tuple[Path, int]], dtype: str) -> None:
        self.paths = [path for path, _ in files]
        self.ends = list(accumulate(count for _, count in files))
        self.dtype = np.dtype(dtype)
        self._mapped: dict[int, NDArray[Any]] = {}

    def __len__(self) -> int:
        return self.ends[-1] if self.ends else 0

    def __getitem__(self, part: slice) -> NDArray[Any]:
        """Return tokens start:stop; they may lie in several shards."""
        start, stop, _ = part.indices(len(self))
        pieces = []
        while start < stop:
            shard = bisect_right(self.ends, start)
            first = self.ends[shard - 1] if shard else 0
            end = min(stop, self.ends[shard])
            pieces.append(self._shard(shard)[start - first : end - first])
            start = end
        return np.concatenate(pieces) if pieces else np.zeros(0, self.dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self[:], dtype=dtype)

    def _shard(self, shard: int) -> NDArray[Any]:
        if shard not in self._mapped:
            while len(self._mapped) >= OPEN_FILES:
                del self._mapped[next(iter(self._mapped))]
            self._mapped[shard] = np.memmap(self.paths[shard], dtype=self.dtype, mode="r")
        return self._mapped[shard]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_mapped": {}}  # another process maps the files itself


@dataclass(frozen=True)
class PackedCorpus:
    """A tokenized corpus in a folder: shards of token ids, tokenizer and manifest."""

    folder: Path
    manifest: dict[str, Any]

    def tokens(self, split: str) -> ShardedTokens:
        """Return the token ids of a split, memory-mapped, [N].

        Raises:
            ValueError: a shard is missing or has another size than the manifest says.
        """
        dtype = self.manifest["dtype"]
        files = []
        for i, shard in enumerate(self.manifest["shards"]):
            if count := shard["splits"][split]["tokens"]:
                path = shard_file(self.folder, i, split)
                if fault := size_fault(path, count * np.dtype(dtype).itemsize):
                    raise ValueError(
                        f"{path}: {fault}; `antiphase data pack` with the same sources packs the "
                        "damaged shards again"
                    )
                files.append((path, count))
        return ShardedTokens(files, dtype)

    def tokenizer(self) -> Any:
        """Return the tokenizer of this corpus."""
        from antiphase.tasks.text.tokenizer import load_tokenizer

        return load_tokenizer(self.folder)


def open_packed(folder: Path) -> PackedCorpus | None:
    """Return the packed corpus of a folder; None if it is not complete."""
    found = read_json(folder / MANIFEST)
    return None if found is None or "shards" not in found else PackedCorpus(folder, found)


def shard_file(folder: Path, shard: int, split: str) -> Path:
    """Return the path of a shard's token ids of a split."""
    return folder / SHARDS / f"{shard:05}.{split}.bin"


def shard_entry(folder: Path, shard: int) -> Path:
    """Return the path of a shard's entry in the index."""
    return folder / SHARDS / f"{shard:05}.json"


def size_fault(path: Path, size: int) -> str | None:
    """Return what is wrong with a file's size, or None."""
    try:
        found = path.stat().st_size
    except FileNotFoundError:
        return "is missing"
    return None if found == size else f"is damaged: it has {found} bytes, expected {size}"


def complete_entry(folder: Path, shard: int, itemsize: int) -> dict[str, Any] | None:
    """Return a shard's entry if the shard is complete: all its files have their sizes."""
    entry = read_json(shard_entry(folder, shard))
    if entry is None:
        return None
    for split, about in entry["splits"].items():
        count = about["tokens"]
        if count and size_fault(shard_file(folder, shard, split), count * itemsize):
            return None
    return entry


def damaged_shards(packed: PackedCorpus) -> dict[int, str]:
    """Return what is wrong with shards, by number, reading all of them for their checksums."""
    faults = {}
    itemsize = np.dtype(packed.manifest["dtype"]).itemsize
    for i, shard in enumerate(packed.manifest["shards"]):
        for split, about in shard["splits"].items():
            if not about["tokens"]:
                continue
            path = shard_file(packed.folder, i, split)
            fault = size_fault(path, about["tokens"] * itemsize)
            if fault is None and _checksum(path) != about["sha256"]:
                fault = "is damaged: its checksum differs"
            if fault is not None:
                faults[i] = f"{path.name} {fault}"
    return faults


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the object in a JSON file; None if it is missing or damaged."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a file such that a kill leaves the old one, none, or the new one; never a part."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.draft")
    with draft.open("w", encoding="utf-8") as file:
        json.dump(content, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def _checksum(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
