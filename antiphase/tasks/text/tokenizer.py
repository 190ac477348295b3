"""Tokenizers: single bytes, byte pairs trained on the corpus, or any Hugging Face tokenizer.

All are a `PreTrainedTokenizerFast`, so that a model saved beside one generates text by itself.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from antiphase.models.locate import require_on_hub
from antiphase.options import nearest

END = "<|end|>"
BYTES = "bytes"
BPE = "bpe:"
MIN_BPE_VOCABULARY = 300  # 256 bytes, the end token, and some merges


def make_tokenizer(kind: str, texts: Iterable[str]) -> Any:
    """Return a tokenizer that has an end token.

    Args:
        kind: `bytes`, `bpe:SIZE` (trained on `texts`), or a tokenizer's folder or hub name.
        texts: documents to train on; other kinds do not read them.

    Raises:
        ValueError: there is no such tokenizer, or it has no end token.
    """
    if kind == BYTES:
        return _with_byte_level(_byte_tokenizer())
    if kind.startswith(BPE):
        return _with_byte_level(_train_bpe(kind, texts))
    try:
        if not Path(kind).is_dir():
            require_on_hub(kind, "tokenizer_config.json", "tokenizer.json", "tokenizer.model")
        loaded = AutoTokenizer.from_pretrained(kind)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(
            f"tokenizer: got {kind!r}, allowed are {BYTES}, {BPE}SIZE, or a tokenizer's folder or "
            f"hub name ({error}){nearest(kind, [BYTES])}"
        ) from error
    if loaded.eos_token_id is None:
        raise ValueError(f"tokenizer: {kind} has no end token (eos_token) to separate documents")
    return loaded


def tokenizer_key(kind: str) -> str:
    """Return what tells a tokenizer from others: its kind, or the hash of a folder's files."""
    folder = Path(kind)
    if not folder.is_dir():
        return kind
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.iterdir() if p.suffix in (".json", ".model", ".txt")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def load_tokenizer(folder: Path) -> Any:
    """Return the tokenizer saved in a folder."""
    return AutoTokenizer.from_pretrained(folder)


def _byte_tokenizer() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    return Tokenizer(
        models.BPE(vocab={END: 0} | {c: i + 1 for i, c in enumerate(alphabet)}, merges=[])
    )


def _train_bpe(kind: str, texts: Iterable[str]) -> Tokenizer:
    size = kind.removeprefix(BPE)
    if not size.isdigit() or int(size) < MIN_BPE_VOCABULARY:
        raise ValueError(
            f"tokenizer: got {kind!r}, expected {BPE}SIZE with a vocabulary size of at least "
            f"{MIN_BPE_VOCABULARY}"
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


def _with_byte_level(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, bos_token=END)
