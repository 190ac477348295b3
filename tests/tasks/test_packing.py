"""Packing: many processes, one result; kills, damage and full disks lose nothing."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from antiphase.tasks import Language, language
from antiphase.tasks.counter_rng import hash_key, permuted
from antiphase.tasks.text import corpus, packing, shards
from antiphase.tasks.text.corpus import documents, spans
from antiphase.tasks.text.packed import (
    MANIFEST,
    SPLIT_PERCENTILES,
    ShardedTokens,
    open_packed,
    shard_entry,
    shard_file,
)
from antiphase.tasks.text.packing import pack, repair
from antiphase.tasks.text.shards import LOG, pieces
from tests.cli.runner import invoke

PARTS = 40


@pytest.fixture(autouse=True)
def separate_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("ANTIPHASE_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    folder = tmp_path / "text"
    folder.mkdir()
    for i in range(120):
        (folder / f"{i:03}.txt").write_text(f"Text {i}, ünïcode.\n" + f"Line {i} of it.\n" * 60)
    return folder


@pytest.fixture
def planned(text, tmp_path, monkeypatch) -> Path:
    """A folder in which everything is ready for workers."""
    monkeypatch.setattr(packing, "PART", 2000)
    folder = tmp_path / "packed"
    (folder / "shards").mkdir(parents=True)
    packing._prepare(folder, "key", [str(text)], "bytes", lambda _: None)
    assert packing._shards(folder) == PARTS
    return folder


def all_tokens(packed) -> dict[str, list[int]]:
    return {split: packed.tokens(split)[:].tolist() for split in SPLIT_PERCENTILES}


def worker(folder: Path) -> subprocess.Popen:
    command = [sys.executable, "-m", "antiphase.tasks.text.shards", str(folder), str(os.getpid())]
    return subprocess.Popen(command)


def packed_shards(folder: Path) -> list[int]:
    return sorted(json.loads(line)["shard"] for line in (folder / LOG).read_text().splitlines())


def test_the_tokens_do_not_depend_on_shards_or_processes(text, tmp_path, monkeypatch):
    one = pack([str(text)], "bytes")
    assert len(one.manifest["shards"]) == 1
    monkeypatch.setattr(packing, "PART", 2000)
    many = pack([str(text)], "bytes", tmp_path / "many", processes=3)
    assert len(many.manifest["shards"]) == PARTS
    assert all_tokens(many) == all_tokens(one)
    assert packed_shards(many.folder) == list(range(PARTS))
    for name in ("documents", "bytes", "tokens", "pieces", "piece_lengths"):
        assert many.manifest[name] == one.manifest[name], name
    assert one.manifest["documents"] == sum(one.manifest["pieces"].values()) == 120
    assert one.manifest["bytes"] == sum(p.stat().st_size for p in text.iterdir())


def test_a_killed_packer_loses_nothing_and_two_share_the_work(planned):
    killed = worker(planned)
    while not shard_entry(planned, 3).is_file():
        time.sleep(0.005)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    before = len(packed_shards(planned))
    assert open_packed(planned) is None
    two = [worker(planned), worker(planned)]
    assert [process.wait() for process in two] == [0, 0]
    packed = packing._finish(planned)
    assert 3 <= before < PARTS, "it was killed too late: nothing was left to do"
    assert packed_shards(planned) == list(range(PARTS))
    assert not list(planned.rglob("*.draft"))
    assert sum(packed.manifest["pieces"].values()) == 120


def test_a_worker_ends_with_its_parent(planned):
    shards.work(planned, parent=-1)
    assert not (planned / LOG).exists()


def test_a_full_disk_is_named_and_the_next_call_goes_on(planned):
    """The limit on the size of a file fails a write as a full disk does."""
    code = (
        "import resource, signal, sys; from pathlib import Path; "
        "from antiphase.tasks.text import shards; "
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500)); "
        "shards.work(Path(sys.argv[1]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(planned)], capture_output=True, text=True, check=False
    )
    assert done.returncode
    assert "shard 0 could not be written (File too large); 0 of 40 shards are" in done.stderr
    assert "run the same command again" in done.stderr
    assert not list(planned.rglob("*.draft"))
    shards.work(planned)
    assert packing._finish(planned).manifest["documents"] == 120


def test_damage_is_named_and_repaired(text, planned):
    shards.work(planned)
    packed = packing._finish(planned)
    before = all_tokens(packed)
    flipped, cut, lost = (shard_file(planned, i, "train") for i in (5, 6, 7))
    data = bytearray(flipped.read_bytes())
    data[10] ^= 1
    flipped.write_bytes(data)
    os.truncate(cut, 100)
    lost.unlink()
    with pytest.raises(ValueError, match=r"00006.train.bin: is damaged: it has 100 bytes, expec"):
        packed.tokens("train")
    said: list[str] = []
    assert all_tokens(repair(packed, said.append)) == before
    assert [line.partition(":")[0] for line in said[:3]] == [
        "00005.train.bin is damaged",
        "00006.train.bin is damaged",
        "00007.train.bin is missing",
    ]


def test_a_damaged_shard_whose_text_has_changed_is_left_as_it_is(text, planned):
    shards.work(planned)
    packed = packing._finish(planned)
    os.truncate(shard_file(planned, 6, "train"), 100)
    shard_file(planned, 5, "train").unlink()
    before = {p.name: p.read_bytes() for p in (planned / "shards").iterdir()}
    original = (text / "019.txt").read_text()
    (text / "019.txt").write_text(original.replace("Line", "Word"))  # as many tokens
    with pytest.raises(ValueError, match="shard 6 was damaged, and its text has changed"):
        repair(packed, lambda _: None)
    after = {p.name: p.read_bytes() for p in (planned / "shards").iterdir()}
    assert after.keys() - before.keys() == {"00005.train.bin"}, "its text is the same"
    assert {name: after[name] for name in before} == before
    (text / "019.txt").unlink()
    with pytest.raises(ValueError, match=r"019\.txt"):
        repair(packed, lambda _: None)
    assert {p.name: p.read_bytes() for p in (planned / "shards").iterdir()} == after
    (text / "019.txt").write_text(original)
    assert sum(map(len, all_tokens(repair(packed, lambda _: None)).values())) == sum(
        packed.manifest["tokens"].values()
    )


def test_the_command_packs_and_repairs(text, tmp_path):
    command = ["data", "pack", str(text), "--out", str(tmp_path / "packed")]
    done = invoke(*command)
    assert done.exit_code == 0, done.output
    assert "120 documents" in done.output
    os.truncate(shard_file(tmp_path / "packed", 0, "train"), 100)
    done = invoke(*command, "--json")
    assert json.loads(done.stdout)["documents"] == 120
    assert "packing shard 0 again" in done.stderr
    assert invoke("data", "pack", str(tmp_path / "nothing")).exit_code == 2


def test_the_command_rejects_what_it_would_ignore(text, tmp_path, monkeypatch):
    monkeypatch.chdir(text)
    done = invoke("data", "pack", "", "--out", str(tmp_path / "packed"))
    assert done.exit_code == 2
    assert "text: got an empty name" in done.stderr
    folder = pack([str(text)], "bytes", tmp_path / "packed").folder
    done = invoke("data", "pack", f"packed:{folder}", "--out", str(tmp_path / "other"))
    assert done.exit_code == 2
    assert f"packed:{folder}: is packed already" in done.stderr
    assert not (tmp_path / "other").exists()
    assert invoke("data", "pack", f"packed:{folder}").exit_code == 0


def test_a_folder_with_another_corpus_is_kept(text, tmp_path):
    folder = tmp_path / "packed"
    pack([str(text)], "bytes", folder)
    assert pack([str(text)], "bytes", folder).folder == folder
    with pytest.raises(ValueError, match="holds a corpus of other sources, of another tokenizer"):
        pack([str(text)], "bpe:300", folder)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("mine")
    with pytest.raises(ValueError, match="holds something that is no packed corpus"):
        pack([str(text)], "bytes", tmp_path / "notes")


def test_a_packed_corpus_is_a_source(text, tmp_path):
    folder = pack([str(text)], "bpe:300", tmp_path / "packed").folder
    found = Language(text=f"packed:{folder}", length=16, size=40)
    same = Language(text=str(text), tokenizer="bpe:300", length=16, size=40)
    assert found.vocab_size == same.vocab_size == 300
    assert np.array_equal(found.examples(range(40)).tokens, same.examples(range(40)).tokens)
    with pytest.raises(ValueError, match=r"got 'bytes', but packed:.* was packed with 'bpe:300'"):
        Language(text=f"packed:{folder}", tokenizer="bytes")
    with pytest.raises(ValueError, match="give it alone"):
        Language(text=[f"packed:{folder}", str(text)])
    (folder / MANIFEST).unlink()
    with pytest.raises(ValueError, match=r"expected a packed corpus .* found an unfinished one"):
        Language(text=f"packed:{folder}")


def test_other_processes_of_a_run_wait(text, tmp_path, monkeypatch, capsys):
    ready = iter([None, None, None, pack([str(text)], "bytes", tmp_path / "p")])
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(packing, "_PAUSE", 0.01)
    capsys.readouterr()
    monkeypatch.setattr(packing, "open_packed", lambda _: next(ready))
    assert pack([str(text)], "bytes").folder == tmp_path / "p"
    assert "waiting until the first process has packed the text" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["jsonl", "jsonl.gz", "jsonl.zst", "parquet", "dataset"])
def test_rows_are_documents_in_every_format(form, tmp_path, monkeypatch):
    pa = pytest.importorskip("pyarrow")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(corpus, "BLOCK", 1000)
    texts = [f"row {i} ü\nsecond line" * (i % 3) for i in range(70)]
    lines = "".join(json.dumps({"id": i, "text": t}) + "\n" for i, t in enumerate(texts))
    lines = lines.replace("\n", "\n\n", 1) + '{"text": null}\n{"text": "half \\ud800"}'
    source = tmp_path / f"rows.{form}"
    match form:
        case "jsonl":
            source.write_text(lines)
        case "jsonl.gz":
            source.write_bytes(gzip.compress(lines.encode()))
        case "jsonl.zst":
            with pa.CompressedOutputStream(str(source), "zstd") as file:
                file.write(lines.encode())
        case "parquet":
            import pyarrow.parquet

            table = pa.table({"id": list(range(72)), "text": [*texts, None, "half ?"]})
            pyarrow.parquet.write_table(table, source, row_group_size=20)
        case "dataset":
            source = tmp_path / "train.jsonl"
            source.write_text("\n".join(lines.split("\n")[:-1]))
    name = f"datasets:{tmp_path}" if form == "dataset" else str(source)
    found = [d.text for d in documents([name])]
    assert found == ([*texts] if form == "dataset" else [*texts, "half ?"])
    count = {"jsonl": 4, "parquet": 4}.get(form, 1)
    assert len(list(spans([name]))) == count
    packed = pack([name], "bytes")
    assert packed.manifest["documents"] == len(found)


@pytest.mark.parametrize("ending", ["\n", ""])
@pytest.mark.parametrize("suffix", ["txt", "txt.gz"])
def test_a_large_file_is_read_in_blocks(suffix, ending, tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "BLOCK", 1000)
    monkeypatch.setattr(corpus, "_LINE", 100)
    monkeypatch.setattr(shards, "LONGEST", 300)
    text = "".join(f"Zeile {i} für 漢字{ending}" for i in range(400))
    path = tmp_path / f"book.{suffix}"
    path.write_bytes(gzip.compress(text.encode()) if suffix == "txt.gz" else text.encode())
    found = list(documents([str(path)]))
    assert "".join(d.text for d in found) == text
    assert max(len(d.text.encode()) for d in found) <= 1100
    for few in (False, True):
        cut = list(pieces(found, few))
        assert "".join(d.text for d in cut) == text
        assert max(len(d.text) for d in cut) <= 400


def test_damaged_sources_are_named(tmp_path):
    pytest.importorskip("pyarrow")
    cases = {
        "no.jsonl": (b'{"text": "a"}\nnonsense\n', "the row at byte 14 is not JSON"),
        "list.jsonl": (b"[1]\n", "its rows have no 'text'; they are no objects"),
        "number.jsonl": (b'{"text": 3}\n', "row 0 has a int as 'text', expected a string"),
        "no.parquet": (b"PAR1 nonsense", "cannot be read as Parquet"),
        "cut.jsonl.gz": (gzip.compress(b'{"text": "a"}\n' * 999)[:-20], "cannot be read|not JSON"),
        "no.txt.zst": (b"nonsense", "cannot be read"),
    }
    for name, (data, message) in cases.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ValueError, match=message):
            list(documents([str(tmp_path / name)]))


def test_tokens_across_shards(tmp_path):
    numbers = np.arange(100, dtype=np.uint16)
    files = []
    for i, part in enumerate(np.split(numbers, [7, 8, 50])):
        part.tofile(tmp_path / str(i))
        files.append((tmp_path / str(i), len(part)))
    tokens = ShardedTokens(files, "uint16")
    assert len(tokens) == 100
    for start, stop in [(0, 100), (5, 9), (7, 8), (49, 51), (99, 100), (90, 200), (3, 3)]:
        assert np.array_equal(tokens[start:stop], numbers[start:stop])
    assert np.array_equal(np.asarray(tokens), numbers)
    assert len(ShardedTokens([], "uint16")[0:5]) == 0


@pytest.mark.parametrize("n", [1, 2, 3, 1000, 1025])
def test_a_computed_order_is_a_permutation(n):
    orders = [[permuted(i, n, hash_key(seed)) for i in range(n)] for seed in (0, 1)]
    assert sorted(orders[0]) == list(range(n))
    assert n < 4 or orders[0] != orders[1]


def test_a_long_epoch_has_every_sequence_once(text, monkeypatch):
    monkeypatch.setattr(language, "SORTED", 10)
    data = Language(text=str(text), length=32, size=10**6)
    n = data.num_sequences
    starts = [[data._sequence(epoch, i) for i in range(n)] for epoch in (0, 1)]
    assert sorted(starts[0]) == sorted(starts[1]) == list(range(n))
    assert starts[0] != starts[1]
