"""Packing: a corpus is tokenized once into flat files of token ids, and memory-mapped afterwards.

A hash of each document's text assigns it to train, validation or test before anything is packed,
so that validation text is never trained on. A corpus of few documents is cut into pieces first.
Within a file, documents follow one another, each closed by the end token; sequences of a fixed
length are cut across them.
"""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphase.cache_folder import cache_folder, create_private
from antiphase.tasks.text.corpus import Document, documents, manifest
from antiphase.tasks.text.tokenizer import load_tokenizer, make_tokenizer, tokenizer_key

SPLIT_PERCENTILES = {"train": range(4, 100), "validation": range(2, 4), "test": range(2)}
FEW_DOCUMENTS = 100  # a corpus of fewer is cut, each document into about as many pieces
_BATCH = 256  # documents that are tokenized together


@dataclass(frozen=True)
class PackedCorpus:
    """A tokenized corpus in a folder: one file of token ids per split, tokenizer and manifest."""

    folder: Path
    manifest: dict[str, Any]

    def tokens(self, split: str) -> NDArray[Any]:
        """Return the token ids of a split, memory-mapped, [N]."""
        path = self.folder / f"{split}.bin"
        expected = self.manifest["tokens"][split]
        mapped = (
            np.memmap(path, dtype=self.manifest["dtype"], mode="r") if expected else np.zeros(0)
        )
        if len(mapped) != expected:
            raise ValueError(
                f"{path}: has {len(mapped)} tokens, but its manifest says {expected}; the file is "
                "damaged: delete the folder, and it will be packed again"
            )
        return mapped

    def tokenizer(self) -> Any:
        """Return the tokenizer of this corpus."""
        return load_tokenizer(self.folder)


def pack(sources: list[str], tokenizer: str) -> PackedCorpus:
    """Tokenize a corpus, or return it from the cache.

    Args:
        sources: files, globs, folders, `stdlib`, `datasets:NAME`.
        tokenizer: `bytes`, `bpe:SIZE`, or a tokenizer's folder or hub name.
    """
    about = manifest(sources)
    key = f"{about['sha256']} {tokenizer_key(tokenizer)} 1"
    name = hashlib.sha256(key.encode()).hexdigest()[:16]
    folder = cache_folder() / "text" / name
    cached = _load(folder)
    if cached is not None:  # the same text may come from sources of other names
        return PackedCorpus(folder, cached.manifest | about)
    shutil.rmtree(folder, ignore_errors=True)  # its manifest is missing or unreadable
    create_private(folder.parent)
    work = Path(tempfile.mkdtemp(prefix=f"{name}.", dir=folder.parent))
    try:
        _write(work, sources, tokenizer, about)
        try:
            work.rename(folder)  # atomic; another process may have been faster
        except OSError:
            if _load(folder) is None:
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    packed = _load(folder)
    assert packed is not None
    return packed


def _load(folder: Path) -> PackedCorpus | None:
    try:
        return PackedCorpus(folder, json.loads((folder / "manifest.json").read_text()))
    except (OSError, ValueError):
        return None


def _write(work: Path, sources: list[str], kind: str, about: dict[str, Any]) -> None:
    """Write the token files, the tokenizer and the manifest into a folder."""
    cut = about["documents"] < FEW_DOCUMENTS
    training_texts = (d.text for d in _pieces(sources, cut) if _split_of(d) == "train")
    tokenizer = make_tokenizer(kind, training_texts)
    tokenizer.save_pretrained(work)
    dtype = "uint16" if len(tokenizer) <= 1 << 16 else "uint32"
    counts = dict.fromkeys(SPLIT_PERCENTILES, 0)
    files = {split: (work / f"{split}.bin").open("wb") for split in SPLIT_PERCENTILES}
    try:
        for batch in _batches(_pieces(sources, cut)):
            encoded = tokenizer([d.text for d in batch], add_special_tokens=False)["input_ids"]
            for document, ids in zip(batch, encoded, strict=True):
                split = _split_of(document)
                np.asarray([*ids, tokenizer.eos_token_id], dtype=dtype).tofile(files[split])
                counts[split] += len(ids) + 1
    finally:
        for file in files.values():
            file.close()
    complete = about | {
        "tokenizer": kind,
        "vocab_size": len(tokenizer),
        "end": tokenizer.eos_token_id,
        "dtype": dtype,
        "tokens": counts,
    }
    (work / "manifest.json").write_text(json.dumps(complete, indent=1))


def _pieces(sources: list[str], cut: bool) -> Iterator[Document]:
    """Yield the documents, or their pieces cut at line breaks, so that every split gets some."""
    for document in documents(sources):
        if not cut:
            yield document
            continue
        lines = document.text.splitlines(keepends=True)
        size = max(1, len(document.text) // FEW_DOCUMENTS)
        piece, number = "", 0
        for line in lines:
            piece += line
            if len(piece) >= size:
                yield Document(f"{document.name}#{number}", piece)
                piece, number = "", number + 1
        if piece:
            yield Document(f"{document.name}#{number}", piece)


def _split_of(document: Document) -> str:
    digest = hashlib.sha256(document.text.encode("utf-8", errors="surrogatepass")).digest()
    percentile = int.from_bytes(digest[:8], "little") % 100
    return next(split for split, mine in SPLIT_PERCENTILES.items() if percentile in mine)


def _batches(source: Iterator[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    for document in source:
        batch.append(document)
        if len(batch) == _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch
