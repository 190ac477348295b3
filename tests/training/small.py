"""A run of seconds, and how two runs are compared."""

import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file

from antiphase.training import Recipe
from antiphase.training.callbacks import TIMED, read_metrics

SMALL = Recipe(
    model={"hidden_size": 32, "num_hidden_layers": 1},
    task_options={"length": 16, "needles": 2, "keys": 4, "values": 4},
    steps=30,
    batch_size=8,
    log_every=5,
    evaluate_every=10,
    evaluate_examples=16,
    checkpoint_every=10,
    threads=1,
    warmup=2,
)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model" / "model.safetensors")


def untimed(folder: Path) -> list[dict]:
    return [{k: v for k, v in line.items() if k not in TIMED} for line in read_metrics(folder)]


def assert_same_end(one: Path, other: Path) -> None:
    """Weights bit by bit, and every metric that is not a time."""
    found, expected = weights(one), weights(other)
    assert found.keys() == expected.keys()
    for name in found:
        assert torch.equal(found[name], expected[name]), name
    assert untimed(one) == untimed(other)


def unfinished(finished: Path, folder: Path) -> Path:
    """Return a run that was killed after its last checkpoint but one."""
    shutil.copytree(finished, folder)
    shutil.rmtree(folder / "model")
    shutil.rmtree(folder / "checkpoints" / "checkpoint-30")
    return folder
