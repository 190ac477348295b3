"""Tokenizers: single bytes, byte pairs trained on the spot, or any Hugging Face one.

All come as a `PreTrainedTokenizerFast`, so that a model saved beside one generates text by itself.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

END = "<|end|>"
BYTES = "bytes"
BPE = "bpe:"


def make_tokenizer(kind: str, texts: Iterable[str]) -> Any:
    """Return the tokenizer of a kind: `bytes`, `bpe:4096` trained on `texts`, or one to load."""
    if kind == BYTES:
        return _wrapped(_bytes())
    if kind.startswith(BPE):
        return _wrapped(_trained(kind, texts))
    try:
        loaded = AutoTokenizer.from_pretrained(kind)
    except (OSError, ValueError, KeyError) as error:
        known = f"{BYTES}, {BPE}SIZE, or a tokenizer's folder or hub name"
        raise ValueError(f"tokenizer: got {kind!r}, allowed are {known}") from error
    if loaded.eos_token_id is None:
        raise ValueError(f"tokenizer: {kind} has no end token to part documents with")
    return loaded


def identity(kind: str) -> str:
    """Return what tells a tokenizer from another: its kind, and what a folder holds."""
    folder = Path(kind)
    if not folder.is_dir():
        return kind
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.iterdir() if p.suffix in (".json", ".model", ".txt")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def _bytes() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    return Tokenizer(
        models.BPE(vocab={END: 0} | {c: i + 1 for i, c in enumerate(alphabet)}, merges=[])
    )


def _trained(kind: str, texts: Iterable[str]) -> Tokenizer:
    size = kind.removeprefix(BPE)
    if not size.isdigit() or int(size) < 300:
        raise ValueError(
            f"tokenizer: got {kind!r}, expected {BPE} and a vocabulary of at least 300"
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=int(size),
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _wrapped(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, bos_token=END)


def saved_tokenizer(folder: Path) -> Any:
    """Return the tokenizer saved in a folder."""
    return AutoTokenizer.from_pretrained(folder)
