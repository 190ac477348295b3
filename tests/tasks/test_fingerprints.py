"""The examples that a seed gives never change: each task is pinned by the hash of its examples.

If one of these fails, stored runs no longer resume, and results can no longer be reproduced. Raise
the task's `version` when that is intended.
"""

import hashlib
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from antiphase.tasks import TASKS, Examples, Language, task
from antiphase.tasks.text.packing import pack
from antiphase.tasks.text.tokenizer import make_tokenizer
from antiphase.tasks.word_needles import WordNeedles

PINNED = {
    "needle": "2173083fc7571f05",
    "composite_needle": "6bd59df0ed1cbf6a",
    "recall": "e4f6b29c1243424e",
    "many_shot": "442cf31a8a862056",
    "unanswerable": "8375c8fda2b3414d",
    "arithmetic": "9d3e6a086ab1a69d",
}
VARIANTS = {  # options that take other branches than the defaults
    "needle": [
        ({"near": 0.5, "repeats": 2, "keys": 8}, "886ce99b155260dc"),
        ({"depth": 0.25, "queried": 2, "noise": 1.0, "length": 101}, "0f11c2143c237c84"),
    ],
    "composite_needle": [
        ({"near": 0.5, "repeats": 2, "needles": 3}, "3204eec2abc960b4"),
        ({"near": 1.0, "key_tokens": 3, "keys": 4, "queried": 2, "noise": 1.0}, "6a6a99ebeeeef510"),
    ],
    "recall": [({"pairs": 12, "queries": 3, "length": 71}, "57e82398ea763027")],
    "many_shot": [({"order": 2, "classes": 3, "words": 3}, "614b3e2c4095629a")],
    "unanswerable": [({"near": 1.0, "absent": 0.3}, "6366c216987165e7")],
    "arithmetic": [
        ({"steps": 2, "others": 3, "modulus": 7, "length": 90}, "6f9a3e632262ba8d"),
        ({"steps": 2, "asked": 6, "modulus": 5}, "97a5295e2864b5df"),
    ],
}


def fingerprint(batches: list[Examples]) -> str:
    """Return the hash of all arrays of all batches."""
    digest = hashlib.sha256()
    for batch in batches:
        for field in fields(batch):
            digest.update(np.ascontiguousarray(getattr(batch, field.name), dtype="<i8").tobytes())
    return digest.hexdigest()[:16]


def of_task(name: str, **options: object) -> str:
    """Return the fingerprint of 50 examples of each split and of two seeds."""
    batches = [
        task(name)(split=split, seed=seed, **options).examples(range(50))
        for split in ("train", "validation", "test")
        for seed in (0, 7)
    ]
    return fingerprint(batches)


def test_every_task_is_pinned():
    assert set(PINNED) == set(VARIANTS) == set(TASKS)


@pytest.mark.parametrize(("name", "pinned"), PINNED.items())
def test_the_examples_of_a_seed_never_change(name: str, pinned: str):
    assert of_task(name) == pinned


@pytest.mark.parametrize(
    ("name", "options", "pinned"),
    [(name, *variant) for name, variants in VARIANTS.items() for variant in variants],
)
def test_nor_do_those_of_other_options(name: str, options: dict, pinned: str):
    assert of_task(name, **options) == pinned


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setenv("ANTIPHASE_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "corpus"
    folder.mkdir()
    for i in range(120):
        (folder / f"{i:03}.txt").write_text(f"{i} green bottles, " * (5 + i % 9), encoding="utf-8")
    monkeypatch.chdir(tmp_path)  # names of documents are part of the corpus hash
    return Path("corpus")


def test_the_sequences_of_a_corpus_and_its_identity_never_change(corpus):
    batches = [
        Language(split=split, seed=seed, text=str(corpus), length=32).examples(range(40))
        for split in ("train", "validation", "test")
        for seed in (0, 7)
    ]
    assert fingerprint(batches) == "5f2d5a5520d14c38"
    assert pack([str(corpus)], "bytes").manifest["text_sha256"][:16] == "aecfdf18ee283e4e"
    assert pack([str(corpus)], "bpe:300").manifest["tokens"] == {
        "train": 5101,
        "validation": 94,
        "test": 95,
    }


def test_the_questions_in_words_never_change():
    needles = WordNeedles(make_tokenizer("bytes", []), length=900, needles=4, seed=3)
    digest = hashlib.sha256()
    for i in range(10):
        q = needles.question(i)
        digest.update(repr((q.ids, q.answer, q.row, q.relevant, q.depth, q.text)).encode())
    assert digest.hexdigest()[:16] == "d56e282704dcc111"
