"""Invalid values and paths are found before any work: the work is replaced by a failure."""

import pytest

from antiphase.benchmarks import attention as attention_benchmark
from antiphase.benchmarks import model as model_benchmark
from tests.cli.runner import invoke


@pytest.fixture(autouse=True)
def no_work(monkeypatch):
    """Fail where the slow part of a command would begin."""

    def work(*args, **kwargs):
        pytest.fail("work began before all values were checked")

    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", work)
    monkeypatch.setattr("antiphase.training.run.train", work)
    monkeypatch.setattr(attention_benchmark, "machine", work)
    monkeypatch.setattr(model_benchmark, "run", work)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture
def paths(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("compare folder --plot curves.txt", "--plot: got curves.txt, expected a name that ends"),
        ("compare folder --plot file/curves.png", "file is a file, not a folder"),
        ("maps --out map.txt", "--out: got map.txt, expected a name that ends in .png, .svg"),
        ("maps --out map.png --example -1", "--example: got -1"),
        ("maps --out map.png --standard smollm", "did you mean 'smollm2'?"),
        ("analyze diff_v1 --out file", "--out: got file, which is a file"),
        ("analyze diff_v1 --text nowhere/*.txt", "--text: nowhere/*.txt: is no file, folder or"),
        ("analyze diff_v1 --text folder", "--text: folder: no text files in it"),
        ("analyze diff_v1 --task hay", "--task: got 'hay', allowed are needle"),
        ("analyze diff_v1 --task needles", "; did you mean 'needle'?"),
        ("task manyshot", "; did you mean 'many_shot'?"),
        ("show nanno", "; did you mean 'nano'?"),
        ("analyze diff_v1 --sequences 0", "--sequences: got 0"),
        ("analyze diff_v1 --length 4", "--length: got 4, expected at least 8"),
        ("analyze smollm", "did you mean 'smollm2'?"),
        ("train needle-nano --out file", "--out: got file, which is a file"),
        ("train needle-nano --set steps=x", "steps: got 'x'"),
        ("unchain smollm2 --out file", "--out: got file, which is a file"),
        ("unchain smollm2 --text nowhere/*.txt", "--text: nowhere/*.txt: is no file, folder or"),
        ("unchain smollm2 --method nonsense", "--method: got 'nonsense', allowed are dex"),
        ("unchain smollm2 --method kvo_only", "; did you mean 'kvo-only'?"),
        ("unchain smollm2 --method v2 --controls", "--controls runs DEX and all controls"),
        ("unchain smollm --steps 2", "did you mean 'smollm2'?"),
        ("unchain smollm2 --steps 0", "--steps: got 0"),
        ("lab --out file", "--out: got file, which is a file"),
        ("lab --only x", "--only: got 'x', expected numbers and commas"),
        ("lab --seeds 0", "--seeds: got 0"),
        ("lab --resume", "--resume: goes with --full, --study or --road"),
        ("lab --full --resume", "--resume: there is no docs/results/lab/lock.json here"),
        ("lab --road --resume", "--resume: there is no docs/results/road/runs.jsonl here"),
        ("lab --full --resume --records x", "--records is given, too"),
        ("lab --report nowhere", "--report: got nowhere"),
        ("import-weights nowhere new", "source: got nowhere, which is no folder"),
        ("import-weights folder file", "target: got file, which is a file"),
        ("bench attention --out bench.txt", "--out: got bench.txt, expected a name that ends in"),
        ("bench attention --out file/bench.json", "file is a file, not a folder"),
        ("bench attention --out folder.json/", "folder.json"),
        ("bench attention --plot bench.txt", "--plot: got bench.txt"),
        ("bench model --out folder", "--out: got folder, expected a name that ends in .json"),
        ("bench model --size huge", "--size: got 'huge'"),
        ("bench model --size mino", "; did you mean 'mini'?"),
        ("bench adapter --threads 0", "--threads: got 0"),
        ("bench interface --dtype fp8", "--dtype: got 'fp8', allowed are fp32, bf16"),
        ("bench training --set nonsense=1", "has no field 'nonsense'"),
    ],
)
def test_invalid_values_are_found_before_any_work(paths, tmp_path, arguments, message):
    (tmp_path / "folder.json").mkdir()
    result = invoke(*arguments.split())
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert result.stdout == ""
