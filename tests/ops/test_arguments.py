"""Invalid arguments raise an error that names them, what was given and what is allowed."""

import pytest
import torch

from antiphase import backend_for, diff_attention
from antiphase.ops import attention


def valid(**changes):
    options = {
        "q1": torch.randn(1, 4, 6, 8),
        "k1": torch.randn(1, 2, 6, 8),
        "q2": torch.randn(1, 4, 6, 8),
        "k2": torch.randn(1, 2, 6, 8),
        "v": torch.randn(1, 2, 6, 16),
        "lam": 0.5,
    }
    return {**options, **changes}


INTEGERS = {
    name: torch.ones(1, 2, 6, 8, dtype=torch.int64) for name in ("q1", "k1", "q2", "k2", "v")
}

INVALID = {
    "three dimensions": ({"q1": torch.randn(4, 6, 8)}, r"q1: got shape \(4, 6, 8\)"),
    "not a tensor": ({"v": [1.0]}, "v: got list"),
    "empty heads": ({"k1": torch.randn(1, 0, 6, 8)}, "k1: .* no empty dimension"),
    "integers": (INTEGERS, "q1: got dtype torch.int64, allowed are"),
    "mixed dtypes": ({"v": torch.randn(1, 2, 6, 16).double()}, "v: got dtype torch.float64"),
    "other device": ({"k2": torch.randn(1, 2, 6, 8, device="meta")}, "k2: is on meta"),
    "width of keys": ({"k1": torch.randn(1, 2, 6, 4)}, r"k1: got shape .* expected \[1, .*, 8\]"),
    "heads of keys": ({"k1": torch.randn(1, 3, 6, 8)}, "k1: got 3 heads, .* q1's 4"),
    "heads of values": ({"v": torch.randn(1, 4, 6, 16)}, r"v: .* expected \[1, 2, 6, any\]"),
    "length of values": ({"v": torch.randn(1, 2, 5, 16)}, "v: got shape"),
    "batch": ({"q2": torch.randn(2, 4, 6, 8)}, "q2: got shape"),
    "heads of noise": ({"q2": torch.randn(1, 3, 6, 8)}, "q2: got 3 heads"),
    "width of noise": ({"k2": torch.randn(1, 2, 6, 4)}, "k2: got shape"),
    "lam's shape": ({"lam": torch.rand(3, 1, 1)}, r"lam: .* \[1, 4, 6, 1\]"),
    "lam's dtype": ({"lam": torch.ones(1, dtype=torch.int64)}, "lam: got dtype"),
    "lam over keys": ({"lam": torch.rand(1, 4, 6, 6)}, "lam: got shape"),
    "mask's shape": ({"mask": torch.ones(5, 6, dtype=torch.bool)}, r"mask: .* \[1, 4, 6, 6\]"),
    "mask's dtype": ({"mask": torch.ones(6, 6, dtype=torch.int64)}, "mask: got torch.int64"),
    "mask with grad": ({"mask": torch.zeros(6, 6, requires_grad=True)}, "mask: requires grad"),
    "scale": ({"scale": -1.0}, "scale: got -1.0, expected a positive"),
    "scale2": ({"scale2": 0.0}, "scale2: got 0.0"),
    "no lam": ({"lam": None}, "lam: got None"),
    "lam as a string": ({"lam": "0.5"}, "lam: got str"),
    "no noise": ({"q2": None, "k2": None}, "q2: got NoneType, expected a tensor"),
    "no noise keys": ({"k2": None}, "k2: got NoneType, expected a tensor"),
    "window of 0": (
        {"window": 0, "causal": True},
        "window: got 0, expected an integer of at least",
    ),
    "half a key": ({"window": 2.5, "causal": True}, "window: got 2.5, expected an integer"),
    "window without causal": ({"window": 4}, "window: got 4 with causal=False.* causal=True"),
    "first keys without a window": ({"keep_first": 2}, "keep_first: got 2 without a window"),
    "negative first keys": (
        {"keep_first": -1, "window": 4, "causal": True},
        "keep_first: got -1, expected an integer of at least 0",
    ),
    "documents' shape": (
        {"documents": torch.zeros(1, 5, dtype=torch.int64)},
        r"documents: got torch.int64 of shape \(1, 5\), .* \[Tk\] = \[6\] or \[B, Tk\] = \[1, 6\]",
    ),
    "documents' dtype": ({"documents": torch.zeros(6)}, "documents: got torch.float32"),
    "documents as a list": ({"documents": [0] * 6}, "documents: got list"),
    "dropout of 1": ({"dropout": 1.0}, "dropout: got 1.0, expected a probability"),
    "negative dropout": ({"dropout": -0.1}, "dropout: got -0.1"),
    "seed as a number": ({"dropout": 0.1, "dropout_seed": 3}, r"dropout_seed: got 3.* int64"),
    "seed's dtype": (
        {"dropout": 0.1, "dropout_seed": torch.tensor(3.0)},
        "dropout_seed: got .*float32",
    ),
    "soft-cap of 0": ({"softcap": 0.0}, "softcap: got 0.0, expected a positive number"),
    "backend": ({"backend": "cudnn"}, "backend: got 'cudnn', allowed are auto, reference, sdpa"),
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid_arguments_raise(name: str):
    changes, message = INVALID[name]
    with pytest.raises(ValueError, match=message):
        diff_attention(**valid(**changes))


def test_sink_has_one_logit_per_head():
    q, k, v = (torch.randn(1, 4, 6, 8) for _ in range(3))
    with pytest.raises(ValueError, match=r"sink: got \(3,\), expected .* \[4\]"):
        attention(q, k, v, sink=torch.zeros(3))


def test_fused_cpu_rejects_other_devices():
    on_meta = {k: v.to("meta") if isinstance(v, torch.Tensor) else v for k, v in valid().items()}
    with pytest.raises(ValueError, match="'fused_cpu' needs CPU tensors, q1 is on meta"):
        diff_attention(**on_meta, backend="fused_cpu")
    assert backend_for(**on_meta).backend == "sdpa"


def test_backend_for_says_why(cxx):
    assert "requested" in str(backend_for(**valid(), backend="reference"))
    every_call = (
        {},
        {"mask": torch.ones(6, 6, dtype=torch.bool)},
        {"q2": torch.randn(1, 2, 6, 8), "k2": torch.randn(1, 1, 6, 8)},  # fewer noise heads
        {"v": torch.randn(1, 2, 6, 5)},
        {"documents": torch.tensor([0, 0, 1, 1, 1, 2]), "causal": True, "window": 2},
    )
    for changes in every_call:
        choice = backend_for(**valid(**changes))
        assert (choice.backend, choice.level) == ("fused_cpu", "c++"), changes
    doubles = {k: v.double() for k, v in valid().items() if isinstance(v, torch.Tensor)}
    choice = backend_for(**valid(**doubles))
    assert choice.level == "python"
    assert "float64 is not supported" in choice.reason


def test_an_empty_batch_is_no_error():
    tensors = {k: v[:0] if isinstance(v, torch.Tensor) else v for k, v in valid().items()}
    tensors["v"].requires_grad_()
    out = diff_attention(**tensors)
    assert out.shape == (0, 4, 6, 16)
    out.sum().backward()
