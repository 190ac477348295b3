"""Text: a reproducible corpus, splits by document, packed files that are validated, errors."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from antiphase.evaluation import recall_hits
from antiphase.tasks import Language
from antiphase.tasks.text.corpus import documents, require_sources, spans
from antiphase.tasks.text.packed import shard_file
from antiphase.tasks.text.packing import pack
from antiphase.tasks.text.tokenizer import make_tokenizer


@pytest.fixture(autouse=True)
def separate_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("ANTIPHASE_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for i in range(120):
        (tmp_path / f"{i:03}.txt").write_text(f"Text {i}. " + "The quick brown fox. " * (i % 7 + 3))
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    return tmp_path


def test_every_document_is_in_one_split(folder):
    language = {
        split: Language(split=split, text=str(folder), length=32)
        for split in ("train", "validation", "test")
    }
    tokenizer = language["train"].packed.tokenizer()
    seen = {}
    for split, dataset in language.items():
        text = tokenizer.decode(np.array(dataset.packed.tokens(split), dtype=np.int64))
        seen[split] = {d.name for d in documents([str(folder)]) if f"{d.text}<|end|>" in text}
    assert sum(map(len, seen.values())) == 120
    assert len(set().union(*seen.values())) == 120
    assert len(seen["train"]) > 100


def test_an_epoch_has_every_sequence_once_in_the_order_of_its_seed(folder):
    dataset = Language(text=str(folder), length=32, size=10_000)
    epochs = [
        dataset.examples(range(k * dataset.num_sequences, (k + 1) * dataset.num_sequences)).tokens
        for k in (0, 1)
    ]
    assert np.array_equal(np.sort(epochs[0], 0), np.sort(epochs[1], 0))
    assert not np.array_equal(*epochs)
    again = Language(text=str(folder), length=32, size=10_000).examples(
        [dataset.num_sequences + 3, 5]
    )
    assert np.array_equal(again.tokens, np.stack([epochs[1][3], epochs[0][5]]))
    other = Language(text=str(folder), length=32, seed=1).examples(range(5))
    assert not np.array_equal(other.tokens, epochs[0][:5])


def test_packing_happens_once(folder):
    first = pack([str(folder)], "bytes")
    stamp = shard_file(first.folder, 0, "train").stat().st_mtime_ns
    assert pack([str(folder)], "bytes").folder == first.folder
    assert shard_file(first.folder, 0, "train").stat().st_mtime_ns == stamp
    (folder / "new.txt").write_text("more")
    assert pack([str(folder)], "bytes").folder != first.folder


def test_one_long_file_has_all_splits(tmp_path):
    text = "".join(f"Line {i} of a long book, and then some more of it.\n" for i in range(4000))
    (tmp_path / "book.txt").write_text(text)
    parts = {s: Language(split=s, text=str(tmp_path), length=64) for s in ("train", "validation")}
    assert parts["train"].num_sequences > 20 * parts["validation"].num_sequences > 0
    tokenizer = parts["train"].packed.tokenizer()
    seen = tokenizer.decode(np.array(parts["train"].packed.tokens("train"), dtype=np.int64))
    held = tokenizer.decode(np.array(parts["train"].packed.tokens("validation"), dtype=np.int64))
    lines = [line for line in held.replace("<|end|>", "").splitlines() if line]
    assert not any(f"{line}\n" in seen for line in lines)


def test_another_tokenizer_in_the_same_folder_is_detected(folder, tmp_path_factory):
    place = tmp_path_factory.mktemp("tokenizer")
    sizes = []
    for text in ("one word ", "many words of many kinds "):
        make_tokenizer("bpe:300", [text * 9]).save_pretrained(place)
        sizes.append(pack([str(folder)], str(place)).manifest["vocab_size"])
    assert sizes[0] != sizes[1]


def test_a_cache_without_a_manifest_is_packed_again(folder):
    first = pack([str(folder)], "bytes")
    (first.folder / "manifest.json").write_text("{")
    assert pack([str(folder)], "bytes").manifest == first.manifest


def test_iteration_ends_at_the_size(folder):
    dataset = Language(text=str(folder), length=32, size=3)
    assert len(list(dataset)) == 3
    assert set(dataset[0]) == {"input_ids", "labels", "roles", "needle"}


def test_the_manifest_describes_the_corpus(folder):
    about = pack([str(folder)], "bytes").manifest
    assert about["documents"] == 120
    assert about["bytes"] == sum(len(d.text) for d in documents([str(folder)]))
    assert pack([f"{folder}/*.txt"], "bytes").manifest["text_sha256"] == about["text_sha256"]
    (folder / "000.txt").write_text("changed")
    assert pack([str(folder)], "bytes").manifest["text_sha256"] != about["text_sha256"]


@pytest.mark.parametrize("kind", ["bytes", "bpe:400"])
def test_tokenizers_are_lossless(kind, tmp_path):
    texts = ["def f(x):\n    return x  # ünïcode 漢字", "a b  c\t\r\n"]
    tokenizer = make_tokenizer(kind, texts)
    for text in texts:
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert tokenizer.eos_token_id == 0
    tokenizer.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "tokenizer.json").read_text())
    if kind == "bytes":
        assert len(tokenizer) == 257
    again = make_tokenizer(str(tmp_path), [])
    assert again(texts[0])["input_ids"] == tokenizer(texts[0])["input_ids"]


def test_the_standard_library_is_a_corpus():
    names = [d.name for d in documents(["stdlib"])]
    assert names == sorted(names)
    assert "json/decoder.py" in names
    assert not any("/test/" in f"/{name}" or "site-packages" in name for name in names)
    assert 8e6 < sum(span.size for span in spans(["stdlib"])) < 30e6


def test_a_hub_dataset_gives_its_rows(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    rows = [{"text": f"row {i}", "other": i} for i in range(3)]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = list(documents([f"datasets:{tmp_path}"]))
    assert [d.text for d in found] == ["row 0", "row 1", "row 2"]
    assert found[1].name == f"{tmp_path}/1"
    assert [d.text for d in documents([f"datasets:{tmp_path}:default"])] == [d.text for d in found]


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match=r"needs the `datasets` package; pip install 'antiphase"):
        list(documents(["datasets:x"]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda f: Language(text="nowhere/*.txt"), "no file, folder or glob that matches"),
        (lambda f: Language(text=str(f / "empty")), "no text files in it"),
        (lambda f: Language(text=str(f / "nothing.txt")), "no text in"),
        (lambda f: Language(text=str(f / "latin.txt")), "is not UTF-8 text .* at byte 1"),
        (
            lambda f: Language(text=str(f / "tiny.txt")),
            "fewer than one sequence of 256; give more text",
        ),
        (lambda f: Language(text=str(f / "tiny.txt"), tokenizer="bpe:10"), "at least 300"),
        (lambda f: Language(text=str(f / "tiny.txt"), tokenizer="bpe:x"), "at least 300"),
        (lambda f: Language(text=str(f / "tiny.txt"), tokenizer=str(f)), "allowed are bytes, bpe:"),
        (lambda f: Language(text=f"datasets:{f}/nowhere"), "nowhere: cannot be loaded"),
        (lambda f: Language(text=f"datasets:{f}/rows"), "no 'text'; they have prose"),
        (lambda f: Language(split="dev"), "split: got 'dev'"),
        (lambda f: Language(length=1), "length: got 1"),
    ],
)
def test_invalid_text_raises(make, message, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "nothing.txt").write_text("")
    (tmp_path / "latin.txt").write_bytes(b"a\xe9b")
    (tmp_path / "tiny.txt").write_text("tiny")
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "train.jsonl").write_text('{"prose": "a"}\n')
    with pytest.raises(ValueError, match=message):
        make(tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("byte", r"allowed are bytes, bpe:SIZE, .*HF_HUB_OFFLINE is set\); did you mean 'bytes'"),
        ("nobody/nothing", "nobody/nothing: is not on this machine"),
        ("./nothing/here", "is not a valid name on the hub"),
    ],
)
def test_a_wrong_tokenizer_is_found_without_asking_the_hub_again(name, message, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda _: pytest.fail("asked the hub"))
    with pytest.raises(ValueError, match=message):
        make_tokenizer(name, [])


def test_sources_are_found_without_reading_them(folder, monkeypatch):
    (folder / "latin.txt").write_bytes(b"a\xe9b")
    require_sources(["stdlib", str(folder), f"{folder}/*.txt", str(folder / "001.txt")])
    with pytest.raises(ValueError, match="no file, folder or glob that matches"):
        require_sources(["stdlib", f"{folder}/*.nothing"])
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match="needs the `datasets` package"):
        require_sources(["datasets:x"])


def test_recall_hits_complete_ngrams_that_occurred_earlier():
    tokens = np.array([[1, 2, 3, 9, 1, 2, 3, 1, 2, 4]])
    assert recall_hits(tokens, 2)[0].nonzero()[0].tolist() == [5, 6, 8]
    assert recall_hits(tokens, 3)[0].nonzero()[0].tolist() == [6]
    assert not recall_hits(tokens, 20).any()
    with pytest.raises(ValueError, match="ngram: got 0"):
        recall_hits(tokens, 0)
