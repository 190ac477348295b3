"""Packing: a corpus is tokenized once, into shards that every process memory-maps afterwards.

A hash of each document's text assigns it to train, validation or test before anything is packed,
so that validation text is never trained on. A corpus of few documents is cut into pieces first.
Documents follow one another, each closed by the end token; sequences of a fixed length are cut
across them. The order of the tokens is that of the sources, whatever the number of processes.
"""

import dataclasses
import hashlib
import json
import math
import os
import platform
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from antiphase.cache_folder import cache_folder, create_private
from antiphase.tasks.text.corpus import BUILTIN, Span, sources_key, spans
from antiphase.tasks.text.packed import (
    MANIFEST,
    PLAN,
    SHARDS,
    SPLIT_PERCENTILES,
    PackedCorpus,
    complete_entry,
    damaged_shards,
    open_packed,
    read_json,
    write_json,
)
from antiphase.tasks.text.shards import FEW_DOCUMENTS, Locks, pack_again, pieces, split_of, work
from antiphase.tasks.text.tokenizer import make_tokenizer, tokenizer_key

PACKED = "packed:"  # a source: the folder of a packed corpus
FORMAT = 2  # of the folder; raised when its meaning changes
PART = 1 << 24  # bytes of text in a shard, at least,
PARTS = 256  # and more if there would be more shards than these
TOKENIZER_TEXT = 1 << 28  # bytes of text that a byte-pair tokenizer is trained on, at most
REMINDER = 60.0  # seconds after which a process that waits for another says so again
_PAUSE = 0.5  # seconds between two looks

Report = Callable[[str], None]


def pack(
    sources: list[str],
    tokenizer: str,
    folder: Path | None = None,
    *,
    processes: int | None = None,
    report: Report | None = None,
) -> PackedCorpus:
    """Tokenize a corpus, or return it if that has been done.

    Of the processes of a distributed run, the first of each machine packs and the others wait.

    Args:
        sources: files, globs, folders, `stdlib`, `datasets:NAME`; or one `packed:FOLDER`.
        tokenizer: `bytes`, `bpe:SIZE`, or a tokenizer's folder or hub name.
        folder: for the packed corpus; by default one in the cache, by the sources' names, sizes
            and times of change.
        processes: that tokenize; by default as many as this process may use cores.
        report: is told the progress; by default on stderr, if there is more than one shard.

    Raises:
        ValueError: a source cannot be read or has no text, or the folder holds another corpus.
        OSError: the disk is full; what is complete is kept.
    """
    if any(source.startswith(PACKED) for source in sources):
        return _given(sources, folder)
    key = _key(sources, tokenizer)
    if folder is None:
        folder = cache_folder() / "text" / key[:16]
        create_private(folder)
    _require_own(folder, key)
    say = report or _to_stderr
    if (found := open_packed(folder)) is not None:
        return found
    if _waits():
        return _wait(folder, say)
    (folder / SHARDS).mkdir(parents=True, exist_ok=True)
    _prepare(folder, key, sources, tokenizer, say)
    _work(folder, processes, say if report or _shards(folder) > 1 else lambda _: None)
    return _finish(folder)


def repair(packed: PackedCorpus, report: Report) -> PackedCorpus:
    """Check every shard of a packed corpus by its checksum, and pack the damaged ones again.

    Raises:
        ValueError: the text of a damaged shard is no longer the text that was packed; the shard is
            left as it is.
    """
    for i, fault in damaged_shards(packed).items():
        report(f"{fault}: packing shard {i} again")
        pack_again(packed.folder, i, packed.manifest["shards"][i])
    return packed


def _given(sources: list[str], out: Path | None) -> PackedCorpus:
    """Return the corpus of `packed:FOLDER`."""
    if len(sources) > 1:
        raise ValueError(
            f"text: got {', '.join(sources)}; {PACKED}FOLDER is a corpus of its own, give it alone"
        )
    if out is not None:
        raise ValueError(
            f"{sources[0]}: is packed already and is not written to {out}; leave out --out to "
            "check it, or give the sources of its text"
        )
    folder = Path(sources[0].removeprefix(PACKED))
    found = open_packed(folder)
    if found is None:
        have = "an unfinished one" if (folder / PLAN).is_file() else "none"
        raise ValueError(
            f"{sources[0]}: expected a packed corpus (`antiphase data pack --out`), found {have}"
        )
    return found


def _key(sources: list[str], tokenizer: str) -> str:
    about = [FORMAT, sources_key(sources), tokenizer_key(tokenizer)]
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()


def _require_own(folder: Path, key: str) -> None:
    """Raise if a folder holds something else than this corpus."""
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    plan = read_json(folder / PLAN)
    if plan is None and not (folder / SHARDS).is_dir():
        raise ValueError(f"{folder}: holds something that is no packed corpus; give another folder")
    if plan is not None and plan.get("key") != key:
        raise ValueError(
            f"{folder}: holds a corpus of other sources, of another tokenizer, or of files that "
            f"have changed since ({', '.join(plan['sources'])}; {plan['tokenizer']}); give another "
            "folder, or delete it"
        )


def _waits() -> bool:
    """Tell whether this is a process of a distributed run that leaves packing to another."""
    rank = os.environ.get("LOCAL_RANK", os.environ.get("RANK", "0"))
    return rank.isdigit() and int(rank) > 0


def _wait(folder: Path, say: Report) -> PackedCorpus:
    """Return the corpus once another process has packed it."""
    said = -math.inf
    while (found := open_packed(folder)) is None:
        if time.monotonic() - said > REMINDER:
            done = len(list((folder / SHARDS).glob("*.json")))
            progress = f"{done} of {_shards(folder) or '?'} shards are complete"
            say(f"waiting until the first process has packed the text ({folder}; {progress})")
            said = time.monotonic()
        time.sleep(_PAUSE)
    return found


def _shards(folder: Path) -> int:
    return len((read_json(folder / PLAN) or {"parts": []})["parts"])


def _prepare(folder: Path, key: str, sources: list[str], kind: str, say: Report) -> None:
    """Write the plan and the tokenizer, in one process at a time."""
    locks, waited = Locks(folder), False
    while not (folder / PLAN).is_file():
        with locks.attempt(0) as free:
            if free and not (folder / PLAN).is_file():
                write_json(folder / PLAN, _plan(folder, key, sources, kind, say))
                return
        if not waited:
            say(f"waiting for another process that plans the corpus ({folder})")
            waited = True
        time.sleep(_PAUSE)


def _plan(folder: Path, key: str, sources: list[str], kind: str, say: Report) -> dict[str, Any]:
    found = list(spans(sources))
    few = _count(found, FEW_DOCUMENTS) < FEW_DOCUMENTS
    parts = list(_parts(found))
    tokenizer = make_tokenizer(kind, _training_texts(parts, few))
    tokenizer.save_pretrained(folder)
    known = sum(span.size for span in found)
    if len(parts) > 1:
        size = f", {known / 1e6:,.0f} MB" if known else ""
        say(f"packing {', '.join(sources)} into {len(parts)} shards{size}: {folder}")
    return {
        "format": FORMAT,
        "key": key,
        "sources": sources,
        "tokenizer": kind,
        "vocab_size": len(tokenizer),
        "end": tokenizer.eos_token_id,
        "dtype": "uint16" if len(tokenizer) <= 1 << 16 else "uint32",
        "few_documents": few,
        "parts": [[dataclasses.asdict(span) for span in part] for part in parts],
    }


def _count(found: list[Span], most: int) -> int:
    """Return the number of documents, counted up to a most."""
    count = 0
    for span in found:
        one = span.kind == "text" and span.stop is not None
        count += 1 if one else sum(1 for _ in islice(span.documents(), most - count))
        if count >= most:
            break
    return count


def _parts(found: list[Span]) -> Iterator[list[Span]]:
    """Yield neighbouring spans together, so that shards are neither too small nor too many."""
    least = max(PART, sum(span.size for span in found) // PARTS)
    part: list[Span] = []
    size = 0
    for span in found:
        part.append(span)
        size += span.size
        if span.kind == "dataset" or size >= least:
            yield part
            part, size = [], 0
    if part:
        yield part


def _training_texts(parts: list[list[Span]], few: bool) -> Iterator[str]:
    """Yield texts of the training split, all of a small corpus and some of every part of others."""
    sizes = [span.size for part in parts for span in part]
    known = 0 not in sizes and sum(sizes) <= TOKENIZER_TEXT
    budget = TOKENIZER_TEXT if known else max(1, TOKENIZER_TEXT // max(1, len(parts)))
    for part in parts:
        taken = 0
        for piece in pieces((d for span in part for d in span.documents()), few):
            if split_of(piece) == "train":
                yield piece.text
                taken += len(piece.text)
                if taken >= budget:
                    break


def _work(folder: Path, processes: int | None, say: Report) -> None:
    """Tokenize in this process and in others, which end with it."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    count = min(processes or cores or 1, _shards(folder))
    command = [sys.executable, "-m", "antiphase.tasks.text.shards", str(folder), str(os.getpid())]
    package = str(Path(__file__).parents[3])
    search = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH", "")]))
    others = [
        subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": search},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for _ in range(count - 1)
    ]
    try:
        work(folder, say)
    finally:
        for process in others:
            process.terminate()
        for process in others:
            process.wait()


def _finish(folder: Path) -> PackedCorpus:
    """Write the manifest of a corpus whose shards are complete."""
    plan = read_json(folder / PLAN)
    assert plan is not None
    itemsize = np.dtype(plan["dtype"]).itemsize
    shards = [complete_entry(folder, i, itemsize) for i in range(len(plan["parts"]))]
    entries = [entry for entry in shards if entry is not None]
    assert len(entries) == len(shards)
    if not sum(entry["bytes"] for entry in entries):
        for path in sorted(folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        folder.rmdir()
        raise ValueError(f"text: no text in {', '.join(plan['sources'])}")
    write_json(folder / MANIFEST, _manifest(plan, entries))
    for draft in (folder / SHARDS).glob("*.draft"):  # of processes that were killed
        draft.unlink(missing_ok=True)
    packed = open_packed(folder)
    assert packed is not None
    return packed


def _manifest(plan: dict[str, Any], entries: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the description of a corpus: identity, statistics, and the index of its shards."""
    digests = "".join(entry["text_sha256"] for entry in entries)

    def total(split: str, what: str) -> int:
        return sum(entry["splits"][split][what] for entry in entries)

    tokens = {split: total(split, "tokens") for split in SPLIT_PERCENTILES}
    lengths: Counter[int] = Counter()
    for entry in entries:
        lengths.update({int(bits): count for bits, count in entry["lengths"].items()})
    size = sum(entry["bytes"] for entry in entries)
    return {
        "format": plan["format"],
        "sources": plan["sources"],
        "tokenizer": plan["tokenizer"],
        "vocab_size": plan["vocab_size"],
        "end": plan["end"],
        "dtype": plan["dtype"],
        "text_sha256": hashlib.sha256(digests.encode()).hexdigest(),
        "documents": sum(entry["documents"] for entry in entries),
        "bytes": size,
        "tokens": tokens,
        "bytes_per_token": size / sum(tokens.values()),
        "pieces": {split: total(split, "documents") for split in SPLIT_PERCENTILES},
        # how many pieces have up to so many tokens, each counted once
        "piece_lengths": {str(2**bits - 1): lengths[bits] for bits in sorted(lengths)},
        **({"python": platform.python_version()} if BUILTIN in plan["sources"] else {}),
        "shards": entries,
    }


def _to_stderr(text: str) -> None:
    print(f"antiphase: {text}", file=sys.stderr, flush=True)
