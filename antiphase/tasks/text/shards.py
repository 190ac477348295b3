"""Tokenizing the parts of a planned corpus into shards, by as many processes as there are.

Processes take parts by locks that end with them, and a shard counts once its entry is written. So
any number of packers share the work, on one machine or on a shared folder, and after a kill the
same command resumes with the parts that are missing. Memory holds one block of text at a time.

`python -m antiphase.tasks.text.shards FOLDER` is one such process. It needs neither PyTorch nor
transformers.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from antiphase.tasks.text.corpus import Document, Span
from antiphase.tasks.text.packed import (
    PLAN,
    SHARDS,
    SPLIT_PERCENTILES,
    complete_entry,
    read_json,
    shard_entry,
    shard_file,
    write_json,
)

FEW_DOCUMENTS = 100  # a corpus of fewer is cut, each document into about as many pieces
LONGEST = 1_000_000  # characters; longer documents are cut into such pieces
LOG = "log.jsonl"  # one line per shard that was tokenized
_PAUSE = 0.2  # seconds between two looks at what other processes do

Encode = Callable[[str], list[int]]


class Locks:
    """Numbered locks of a folder, each held by one process at a time and ending with it."""

    def __init__(self, folder: Path) -> None:
        self.file = (folder / ".locks").open("ab")

    @contextlib.contextmanager
    def attempt(self, number: int) -> Iterator[bool]:
        """Hold a lock; the value is whether it was free."""
        try:
            fcntl.lockf(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
        except (BlockingIOError, PermissionError):  # as systems differ
            yield False
            return
        try:
            yield True
        finally:
            fcntl.lockf(self.file, fcntl.LOCK_UN, 1, number)


def work(folder: Path, report: Callable[[str], None] = lambda _: None, parent: int = 0) -> None:
    """Tokenize the parts of a plan that are missing, until all are there.

    Args:
        folder: of the corpus, with its plan and tokenizer.
        report: is told how many shards are complete.
        parent: process without which this one ends, 0 for none.

    Raises:
        ValueError: a source cannot be read.
        OSError: a shard cannot be written.
    """
    plan = read_json(folder / PLAN)
    assert plan is not None
    locks, encode = Locks(folder), load_encoder(folder)
    itemsize = np.dtype(plan["dtype"]).itemsize
    missing = set(range(len(plan["parts"])))
    waited = False
    while True:
        missing = {i for i in missing if complete_entry(folder, i, itemsize) is None}
        if not missing:
            return
        packed = 0
        for i in sorted(missing):
            if parent and os.getppid() != parent:
                return
            with locks.attempt(i + 1) as free:
                if free and complete_entry(folder, i, itemsize) is None:
                    _pack_part(folder, plan, i, encode)
                    packed += 1
                    done = len(plan["parts"]) - len(missing) + packed
                    report(f"{done} of {len(plan['parts'])} shards")
        if not packed:
            if not waited:
                report(f"{len(missing)} shards are being packed by other processes: waiting")
            waited = True
            time.sleep(_PAUSE)


def pack_again(folder: Path, number: int, expected: dict[str, Any]) -> None:
    """Replace one shard of a packed corpus, if it comes out as it was.

    Args:
        folder: of the corpus.
        number: of the shard.
        expected: its entry in the manifest.

    Raises:
        ValueError: its text has changed, or cannot be read; the folder is as before.
        OSError: it cannot be written.
    """
    plan = read_json(folder / PLAN)
    if plan is None:
        raise ValueError(
            f"{folder}: has no {PLAN} that says where the text of shard {number} is; pack the text "
            "into another folder"
        )
    _pack_part(folder, plan, number, load_encoder(folder), expected)


def _pack_part(
    folder: Path,
    plan: dict[str, Any],
    number: int,
    encode: Encode,
    expected: dict[str, Any] | None = None,
) -> None:
    """Write one shard as drafts, compare it with what is expected, then name it; last its entry."""
    started = time.perf_counter()
    drafts = {
        split: shard_file(folder, number, split).with_suffix(f".{os.getpid()}.draft")
        for split in SPLIT_PERCENTILES
    }
    text = _Counted(Span(**span) for span in plan["parts"][number])
    splits: dict[str, dict[str, Any]] = {
        split: {"documents": 0, "tokens": 0, "sha256": hashlib.sha256()} for split in drafts
    }
    lengths: Counter[int] = Counter()
    try:
        with contextlib.ExitStack() as stack:
            files = {s: stack.enter_context(path.open("wb")) for s, path in drafts.items()}
            for piece in pieces(text, plan["few_documents"]):
                split = split_of(piece)
                ids = np.asarray([*encode(piece.text), plan["end"]], dtype=plan["dtype"])
                data, about = ids.tobytes(), splits[split]
                files[split].write(data)
                about["sha256"].update(data)
                about["documents"] += 1
                about["tokens"] += len(ids)
                lengths[len(ids).bit_length()] += 1
            for file in files.values():
                file.flush()
                os.fsync(file.fileno())
        for about in splits.values():
            about["sha256"] = about["sha256"].hexdigest()
        entry = {
            "documents": text.documents,
            "bytes": text.bytes,
            "text_sha256": text.digest.hexdigest(),
            "splits": splits,
            "lengths": dict(lengths),
        }
        if expected and any(entry[name] != expected[name] for name in ("text_sha256", "splits")):
            raise ValueError(
                f"{folder}: shard {number} was damaged, and its text has changed since it was "
                "packed; restore the text, or pack into another folder"
            )
        for split, draft in drafts.items():
            if splits[split]["tokens"]:
                draft.replace(shard_file(folder, number, split))
        write_json(shard_entry(folder, number), entry)
        who = {"host": socket.gethostname(), "process": os.getpid()}
        line = {"shard": number, "seconds": time.perf_counter() - started, **who}
        with (folder / LOG).open("a", encoding="utf-8") as log:
            log.write(json.dumps(line) + "\n")
    except OSError as error:
        done = len(list((folder / SHARDS).glob("*.json")))
        raise OSError(
            f"{folder}: shard {number} could not be written ({error.strerror or error}); "
            f"{done} of {len(plan['parts'])} shards are complete and kept: free disk space and run "
            "the same command again"
        ) from error
    finally:
        for draft in drafts.values():
            draft.unlink(missing_ok=True)


class _Counted:
    """The documents of a part, counted and hashed as they pass."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self.spans, self.digest = spans, hashlib.sha256()
        self.documents = self.bytes = 0

    def __iter__(self) -> Iterator[Document]:
        for span in self.spans:
            for document in span.documents():
                data = _bytes(document)
                self.digest.update(len(data).to_bytes(8, "little"))
                self.digest.update(data)
                self.documents += 1
                self.bytes += len(data)
                yield document


def pieces(documents: Iterable[Document], few: bool) -> Iterator[Document]:
    """Yield the documents that are tokenized: complete ones, or pieces cut at line breaks.

    Args:
        documents: of the corpus.
        few: whether there are so few that each is cut, so that every split gets some.
    """
    for document in documents:
        if not few and len(document.text) <= LONGEST:
            yield document
            continue
        size = min(LONGEST, max(1, len(document.text) // FEW_DOCUMENTS)) if few else LONGEST
        piece: list[str] = []
        length = number = 0
        for line in document.text.splitlines(keepends=True):
            for start in range(0, len(line), LONGEST):  # almost always once
                piece.append(line[start : start + LONGEST])
                length += len(piece[-1])
                if length >= size:
                    yield Document(f"{document.name}#{number}", "".join(piece))
                    piece, length, number = [], 0, number + 1
        if piece:
            yield Document(f"{document.name}#{number}", "".join(piece))


def split_of(document: Document) -> str:
    """Return the split that the text of a document hashes to."""
    percentile = int.from_bytes(hashlib.sha256(_bytes(document)).digest()[:8], "little") % 100
    return next(split for split, mine in SPLIT_PERCENTILES.items() if percentile in mine)


def load_encoder(folder: Path) -> Encode:
    """Return the function from a text to token ids, without special tokens."""
    if (folder / "tokenizer.json").is_file():
        from tokenizers import Tokenizer

        fast = Tokenizer.from_file(str(folder / "tokenizer.json"))
        fast.no_truncation()
        fast.no_padding()
        # a batch of one: its threads would be in the way of the other processes
        return lambda text: fast.encode_batch_fast([text], add_special_tokens=False)[0].ids
    from antiphase.tasks.text.tokenizer import load_tokenizer

    slow = load_tokenizer(folder)
    return lambda text: slow(text, add_special_tokens=False)["input_ids"]


def _bytes(document: Document) -> bytes:
    return document.text.encode("utf-8", errors="surrogatepass")


def main() -> None:
    """Work on the folder that the command line names, as long as the process that started this."""
    with contextlib.suppress(ValueError, OSError):  # which that process meets as well, and reports
        work(Path(sys.argv[1]), parent=int(sys.argv[2]))


if __name__ == "__main__":
    main()
