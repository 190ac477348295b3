"""Text as files of tokens: tokenised once, memory-mapped ever after.

Documents are dealt to train, validation and test by a hash of their content before anything is
packed, so that validation text is never trained on; a few documents are dealt by the piece. Within
a file they stand one after the other, each closed by the end token; texts of a fixed length are cut
across them.
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

from antiphase.cache_folder import cache_folder
from antiphase.tasks.text.corpus import Document, documents, manifest
from antiphase.tasks.text.tokenizer import identity, make_tokenizer, saved_tokenizer

SHARES = {"train": range(4, 100), "validation": range(2, 4), "test": range(2)}  # of 100
FEW = 100  # documents; fewer are cut, each into about as many pieces
_BATCH = 256


@dataclass(frozen=True)
class PackedText:
    """A corpus as tokens, in a folder."""

    folder: Path
    manifest: dict[str, Any]

    def tokens(self, split: str) -> NDArray[Any]:
        """Return a split's tokens, memory-mapped."""
        path = self.folder / f"{split}.bin"
        wanted = self.manifest["tokens"][split]
        mapped = np.memmap(path, dtype=self.manifest["dtype"], mode="r") if wanted else np.zeros(0)
        if len(mapped) != wanted:
            raise ValueError(
                f"{path}: has {len(mapped)} tokens, its manifest says {wanted}; it is damaged: "
                "delete the folder and it is made again"
            )
        return mapped

    def tokenizer(self) -> Any:
        """Return the tokenizer that made it."""
        return saved_tokenizer(self.folder)


def pack(sources: list[str], kind: str) -> PackedText:
    """Return the packed text of these sources and this tokenizer, made now or found."""
    about = manifest(sources)
    name = hashlib.sha256(f"{about['sha256']} {identity(kind)} 1".encode()).hexdigest()[:16]
    folder = cache_folder() / "text" / name
    found = _load(folder)
    if found is not None:
        return PackedText(folder, found.manifest | about)  # the same text may have other names
    shutil.rmtree(folder, ignore_errors=True)  # one without a manifest that can be read
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f"{name}.", dir=folder.parent))
    try:
        _write(work, sources, kind, about)
        try:
            work.rename(folder)  # all or nothing; another process may have been faster
        except OSError:
            if _load(folder) is None:
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    packed = _load(folder)
    assert packed is not None
    return packed


def _load(folder: Path) -> PackedText | None:
    try:
        return PackedText(folder, json.loads((folder / "manifest.json").read_text()))
    except (OSError, ValueError):
        return None


def _write(work: Path, sources: list[str], kind: str, about: dict[str, Any]) -> None:
    few = about["documents"] < FEW
    train = (d.text for d in _pieces(sources, few) if _split(d) == "train")
    tokenizer = make_tokenizer(kind, train)
    tokenizer.save_pretrained(work)
    dtype = "uint16" if len(tokenizer) <= 1 << 16 else "uint32"
    counts = dict.fromkeys(SHARES, 0)
    files = {split: (work / f"{split}.bin").open("wb") for split in SHARES}
    try:
        for batch in _batches(_pieces(sources, few)):
            encoded = tokenizer([d.text for d in batch], add_special_tokens=False)["input_ids"]
            for document, ids in zip(batch, encoded, strict=True):
                split = _split(document)
                np.asarray([*ids, tokenizer.eos_token_id], dtype=dtype).tofile(files[split])
                counts[split] += len(ids) + 1
    finally:
        for file in files.values():
            file.close()
    full = about | {
        "tokenizer": kind,
        "vocab_size": len(tokenizer),
        "end": tokenizer.eos_token_id,
        "dtype": dtype,
        "tokens": counts,
    }
    (work / "manifest.json").write_text(json.dumps(full, indent=1))


def _pieces(sources: list[str], few: bool) -> Iterator[Document]:
    """Return the documents; a few are cut at line breaks, so that every split gets some."""
    for document in documents(sources):
        if not few:
            yield document
            continue
        lines, size = document.text.splitlines(keepends=True), max(1, len(document.text) // FEW)
        piece, number = "", 0
        for line in lines:
            piece += line
            if len(piece) >= size:
                yield Document(f"{document.name}#{number}", piece)
                piece, number = "", number + 1
        if piece:
            yield Document(f"{document.name}#{number}", piece)


def _split(document: Document) -> str:
    digest = hashlib.sha256(document.text.encode("utf-8", errors="surrogatepass")).digest()
    share = int.from_bytes(digest[:8], "little") % 100
    return next(split for split, shares in SHARES.items() if share in shares)


def _batches(source: Iterator[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    for document in source:
        batch.append(document)
        if len(batch) == _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch
