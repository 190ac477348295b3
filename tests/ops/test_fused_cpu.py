"""Properties of the fused backend other than correct results: determinism, NaN, memory, FLOPs."""

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from antiphase import diff_attention
from antiphase.ops import attention, fused_cpu
from tests.ops.cases import Case, errors, run


def test_forward_and_backward_are_deterministic(cxx):
    """Same threads, same bits; also with one head, whose rows are split among the threads."""
    threads = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            for case in (Case(H=1, Hkv=1, Tq=400), Case(B=2, H=4, Hkv=2, Tq=150)):
                for dtype in (torch.float32, torch.bfloat16):
                    inputs = case.inputs(dtype)
                    first = run(diff_attention, inputs, causal=True)
                    for _ in range(3):
                        again = run(diff_attention, inputs, causal=True)
                        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("Tq", [1, 300])
def test_threads_do_not_change_the_result(cxx, Tq: int):
    threads = torch.get_num_threads()
    inputs = Case(H=1, Hkv=1, Tq=Tq, Tk=300, dv=64).inputs(torch.float32)
    try:
        results = []
        for count in (1, 3):
            torch.set_num_threads(count)
            results.append(run(diff_attention, inputs, causal=True))
    finally:
        torch.set_num_threads(threads)
    assert max(errors(results[1], [t.double() for t in results[0]])) < 2e-6


@pytest.mark.parametrize("Tk", [64, 65, 192, 320])
def test_values_read_in_place_and_packed_give_the_same(cxx, Tk: int):
    """fp32 values with contiguous rows are not packed if the last tile of keys is complete."""
    torch.manual_seed(0)
    wide = torch.randn(2, 3, Tk, 80)
    for q_heads in (3, 6):  # one and two query heads per value head
        q1, q2 = torch.randn(2, 2, q_heads, 50, 16)
        k1, k2 = torch.randn(2, 2, 3, Tk, 16)
        strided, contiguous = wide[..., :48], wide[..., :48].contiguous()
        packed, in_place = (
            diff_attention(q1, k1, q2, k2, v, 0.5, causal=True, backend="fused_cpu")
            for v in (strided, contiguous)
        )
        expected = diff_attention(q1, k1, q2, k2, strided, 0.5, causal=True, backend="reference")
        assert torch.equal(packed, in_place)
        torch.testing.assert_close(in_place, expected)


@pytest.mark.parametrize("level", ["python", "c++"])
@pytest.mark.parametrize("Tq", [1, 90])
def test_nan_stays_in_its_row(level: str, Tq: int, request):
    if level == "c++":
        request.getfixturevalue("cxx")
    for dtype in (torch.float32, torch.bfloat16):
        q1, k1, q2, k2, v, lam = Case(B=2, Tq=Tq, Tk=90).inputs(dtype)
        row = min(Tq - 1, 17)
        q2[0, 1, row, 3] = torch.nan
        if level == "python":
            with fused_cpu.python_level():
                out = diff_attention(q1, k1, q2, k2, v, lam, causal=True)
        else:
            out = diff_attention(q1, k1, q2, k2, v, lam, causal=True)
        bad = out.isnan()
        assert bad[0, 1, row].all()
        assert bad.sum() == out.shape[-1]


def test_infinite_scores_are_nan_as_in_the_reference(cxx):
    q1, k1, q2, k2, v, lam = Case(Tq=20).inputs(torch.float32)
    q1[0, 0, 4] = torch.inf
    out = diff_attention(q1, k1, q2, k2, v, lam, causal=True)
    assert out[0, 0, 4].isnan().all()
    assert torch.isfinite(out[0, 1]).all()
    assert torch.isfinite(out[0, 0, :4]).all()


def test_scores_of_minus_infinity_have_zero_weight(cxx):
    """A complete first tile of -inf scores does not change the weights of later keys."""
    q, k, v = (torch.randn(1, 1, 300, 16) for _ in range(3))
    q[..., 0] = 1.0
    k[:, :, :130, 0] = -torch.inf
    out = attention(q, k, v, backend="fused_cpu")
    torch.testing.assert_close(out, attention(q, k[:, :, 130:], v[:, :, 130:]), atol=1e-5, rtol=0)


@pytest.mark.parametrize("spread", [1.0, 30.0], ids=["no maximum needed", "maximum needed"])
def test_scores_of_any_size(cxx, spread: float):
    """Small scores skip the row maximum, large ones may not."""
    inputs = Case(Tq=200, d=32, dv=32).inputs(torch.float32)
    inputs[0] = inputs[0] * spread
    expected = run(diff_attention, [t.double() for t in inputs], causal=True, backend="reference")
    results = run(diff_attention, inputs, causal=True)
    assert max(errors(results, expected)) < 2e-5 * spread


@pytest.mark.parametrize("spread", [1.0, 6.0])
def test_fp32_error_is_at_most_twice_that_of_standard_attention(cxx, spread: float):
    q, k, v = (torch.randn(1, 4, 1000, 64) for _ in range(3))
    q *= spread
    exact = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=True)
    standard = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    ours = attention(q, k, v, causal=True, backend="fused_cpu")
    for norm in (lambda t: t.abs().max(), lambda t: t.square().mean().sqrt()):
        assert norm(ours - exact) <= 2 * norm(standard - exact)

    q1, k1, q2, k2, v, lam = Case(Tq=1000, d=64, dv=64).inputs(torch.float32)
    exact = diff_attention(
        *(t.double() for t in (q1, k1, q2, k2, v, lam)), causal=True, backend="reference"
    )
    two_calls = F.scaled_dot_product_attention(q1, k1, v, is_causal=True)
    two_calls = two_calls - lam * F.scaled_dot_product_attention(q2, k2, v, is_causal=True)
    ours = diff_attention(q1, k1, q2, k2, v, lam, causal=True)
    for norm in (lambda t: t.abs().max(), lambda t: t.square().mean().sqrt()):
        assert norm(ours - exact) <= 2 * norm(two_calls - exact)


@pytest.mark.parametrize("level", ["python", "c++"])
def test_second_derivatives_raise(level: str, request):
    if level == "c++":
        request.getfixturevalue("cxx")
    dtype = torch.float32 if level == "c++" else torch.float64
    inputs = [t.requires_grad_() for t in Case(Tq=9).inputs(dtype)]
    out = diff_attention(*inputs, backend="fused_cpu")
    (grad,) = torch.autograd.grad(out.sum(), inputs[0], create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivatives; use backend='reference'"):
        torch.autograd.grad(grad.sum(), inputs[1])


def test_only_what_needs_a_gradient_gets_one(cxx):
    inputs = Case(Tq=30).inputs(torch.float32)
    inputs[4].requires_grad_()
    diff_attention(*inputs, causal=True).sum().backward()
    assert inputs[4].grad is not None
    assert all(t.grad is None for i, t in enumerate(inputs) if i != 4)


def test_transforms_run_by_the_formula_and_fused_cpu_says_what_to_do():
    inputs = [t[None] for t in Case(Tq=5).inputs()]
    with pytest.raises(ValueError, match="supports neither forward-mode AD nor the transforms"):
        torch.vmap(lambda *t: diff_attention(*t, backend="fused_cpu"))(*inputs)
    out = torch.vmap(diff_attention)(*inputs)
    torch.testing.assert_close(out[0], diff_attention(*(t[0] for t in inputs)))


def test_flop_counter_counts_two_maps_and_one_product():
    case = Case(B=2, H=4, Hkv=2, Tq=10, Tk=12, d=8, d2=16, dv=24, causal=False)
    inputs = [t.requires_grad_() for t in case.inputs()]
    with FlopCounterMode(display=False) as counter:
        out = diff_attention(*inputs, backend="fused_cpu")
    forward = 2 * 2 * 4 * 10 * 12 * (8 + 16 + 24)
    assert counter.get_total_flops() == forward
    with FlopCounterMode(display=False) as counter:
        out.sum().backward()
    assert counter.get_total_flops() == 2 * 2 * 4 * 10 * 12 * (3 * (8 + 16) + 2 * 24)


@pytest.mark.parametrize("level", ["python", "c++"])
def test_memory_is_not_quadratic(level: str, request):
    if level == "c++":
        request.getfixturevalue("cxx")
    T = 8192
    command = [sys.executable, "-m", "tests.ops.peak_memory", level, str(T)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    if printed.strip() == "None":
        pytest.skip("the system does not report peak memory")
    peak, one_map = int(printed), T * T * 4  # bytes
    assert peak < one_map / 2, f"{peak / 1e6:.0f} MB of {one_map / 1e6:.0f}"
