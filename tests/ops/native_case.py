"""One use of `diff_attention` in a fresh process, for `test_native.py`."""

import json
import os
import warnings
from pathlib import Path

import torch
import torch._dynamo
import torch.utils.cpp_extension  # with dynamo: what a first call imports, here once for all cases

from antiphase.ops import backend_for, diff_attention


def run(environment: dict[str, str], report: Path) -> None:
    """Call the op twice and write to `report` whether it was correct, its level and warnings."""
    os.environ.update(environment)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.manual_seed(0)
        inputs = [torch.randn(1, 2, 20, 16) for _ in range(5)]
        first = diff_attention(*inputs, 0.5, causal=True)
        second = diff_attention(*inputs, 0.5, causal=True)
        expected = diff_attention(*inputs, 0.5, causal=True, backend="reference")
        level = backend_for(*inputs, 0.5, causal=True).level
    messages = [str(warning.message) for warning in caught]
    result = {
        "correct": torch.allclose(first, expected, atol=1e-5) and torch.equal(first, second),
        "level": level,
        "warnings": [text for text in messages if "Python level" in text],
    }
    report.write_text(json.dumps(result))
