"""Tensor parallelism: two processes compute the logits and gradients of one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from antiphase.attention import MECHANISMS

pytest.importorskip("transformers.distributed.tensor_parallel")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def differences(tmp_path_factory) -> dict[str, dict]:
    out = tmp_path_factory.mktemp("tensor_parallel") / "found.json"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"),
            *("-m", "tests.models.tensor_parallel", str(out)),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(out.read_text())


@pytest.mark.parametrize("name", list(MECHANISMS))
def test_two_processes_compute_what_one_does(differences, name):
    assert differences[name]["logits"] < 1e-5
    difference, parameter = differences[name]["gradients"]
    assert difference < 1e-4, parameter


@pytest.mark.parametrize("name", list(MECHANISMS))
def test_a_process_holds_half_of_the_attention(differences, name):
    kind = MECHANISMS[name]
    assert bool(kind.tensor_parallel) != bool(kind.unsplit)
    if kind.unsplit:
        assert differences[name]["held"] == 1
        pytest.skip(f"{name} is complete in every process: {kind.unsplit}")
    assert differences[name]["held"] < 0.6
