"""The product of few rows with a weight matrix: equal to `F.linear`, and used in decoding only."""

import contextlib
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from antiphase.attention.projections import apply_linear
from antiphase.ops import linear
from antiphase.ops.fused_cpu import abi, python_level

TOLERANCES = {torch.float32: 1e-6, torch.bfloat16: 4e-3, torch.float16: 5e-4}  # one rounding


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape).to(dtype)


def error(found: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> float:
    """Return the largest error over the largest sum of absolute products."""
    wide = [None if t is None else t.double() for t in (x, weight, bias)]
    sums = F.linear(*(None if t is None else t.abs() for t in wide)).max()
    return float((found.double() - F.linear(*wide)).abs().max() / sums)


@given(
    rows=st.integers(1, 4),
    M=st.integers(1, 70),
    K=st.integers(1, 150),
    has_bias=st.booleans(),
    dtype=st.sampled_from(list(TOLERANCES)),
)
@settings(max_examples=100, deadline=None)
@torch.no_grad()
def test_equals_the_formula(cxx, rows, M, K, has_bias, dtype):
    x, weight = draw(rows, K, dtype=dtype), draw(M, K, dtype=dtype)
    bias = draw(M, dtype=dtype) if has_bias else None
    with mock.patch.object(abi, "linear", wraps=abi.linear) as kernel:
        found = linear(x, weight, bias)
    assert kernel.call_count == 1
    assert found.shape == (rows, M)
    assert found.dtype == dtype
    assert error(found, x, weight, bias) < TOLERANCES[dtype]


@torch.no_grad()
def test_threads_batches_and_strides_do_not_change_the_result(cxx):
    x, weight = draw(2, 1, 515), draw(1031, 515)
    threads = torch.get_num_threads()
    found = []
    try:
        for n in (1, 2, 3):
            torch.set_num_threads(n)
            found.append(linear(x, weight))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[0][1:], linear(x[1:], weight))
    assert torch.equal(found[0], linear(torch.stack([x, x], dim=-1)[..., 0], weight))


@torch.no_grad()
def test_extreme_values_are_those_of_the_formula(cxx):
    x, weight = draw(1, 64), draw(8, 64)
    for value in (float("inf"), float("nan"), 3e38):
        x[0, 3] = value
        torch.testing.assert_close(linear(x, weight), F.linear(x, weight), equal_nan=True)


@pytest.mark.parametrize(
    "case", ["gradients", "five rows", "fp64", "no rows", "transposed", "autocast", "python level"]
)
def test_other_calls_are_pytorchs(cxx, case):
    x, weight = draw(1, 16), draw(24, 16)
    gradients = case == "gradients"
    if case == "five rows":
        x = draw(5, 16)
    elif case == "fp64":
        x, weight = x.double(), weight.double()
    elif case == "no rows":
        x = x[:0]
    elif case == "transposed":
        weight = draw(16, 24).T
    level = python_level() if case == "python level" else contextlib.nullcontext()
    autocast = torch.autocast("cpu", enabled=case == "autocast")
    unused = mock.patch.object(abi, "linear", side_effect=AssertionError)
    with level, autocast, unused, torch.set_grad_enabled(gradients):
        found = linear(x, weight.requires_grad_(gradients))
        assert torch.equal(found, F.linear(x, weight))
    assert found.requires_grad == gradients


@torch.no_grad()
def test_wrong_sizes_raise_pytorchs_error():
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        linear(draw(1, 16), draw(24, 17))


@torch.no_grad()
def test_compiled_and_exported(cxx):
    layer, x = nn.Linear(16, 24), draw(1, 1, 16)
    want = layer(x)
    compiled = torch.compile(lambda x: apply_linear(layer, x), fullgraph=True, backend="aot_eager")
    with mock.patch.object(abi, "linear", wraps=abi.linear) as kernel:
        torch.testing.assert_close(compiled(x), want)
    assert kernel.call_count == 1

    class Program(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor) -> Tensor:
            return apply_linear(self.layer, x)

    program = torch.export.export(Program(), (x,))
    assert "antiphase" not in str(program.graph)
    torch.testing.assert_close(program.module()(x), want)


@torch.no_grad()
def test_replaced_and_observed_layers_are_called_themselves(cxx):
    layer, x, seen = nn.Linear(16, 24), draw(1, 16), []
    with mock.patch.object(abi, "linear", side_effect=AssertionError):
        for register in (layer.register_forward_hook, layer.register_forward_pre_hook):
            handle = register(lambda *_: seen.append(1))
            apply_linear(layer, x)
            handle.remove()
        handle = nn.modules.module.register_module_forward_hook(lambda *_: seen.append(1))
        apply_linear(layer, x)
        handle.remove()
        assert len(seen) == 3

        class Doubled(nn.Linear):
            def forward(self, x: Tensor) -> Tensor:
                return 2 * super().forward(x)

        doubled = Doubled(16, 24)
        assert torch.equal(apply_linear(doubled, x), doubled(x))

        class Quantised(Tensor):
            pass

        quantised = nn.Linear(16, 24)
        quantised.weight = nn.Parameter(quantised.weight.as_subclass(Quantised))
        assert type(apply_linear(quantised, x)) is Quantised
        layer.forward = lambda x: x  # as some libraries do that offload weights
        assert apply_linear(layer, x) is x
