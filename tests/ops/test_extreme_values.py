"""Scores, lambdas, masks and inputs of any size: large, infinite and NaN."""

import contextlib

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from antiphase import diff_attention
from antiphase.ops import attention, fused_cpu
from antiphase.ops.fused_cpu.abi import KERNELS
from tests.ops.cases import Case, run
from tests.ops.random_calls import micro_kernel

SIZES = [1.0, 1e2, 1e4, 5e4, 1e6]
SCALE = 0.25  # of width 16: a power of two, so that it does not round
NAMES = ("out", "q", "k", "v")


@contextlib.contextmanager
def level_of(name: str, request):
    """Enter a level: "python", or "c++" with the micro-kernel after a colon."""
    if name == "python":
        with fused_cpu.python_level():
            yield
    else:
        request.getfixturevalue("cxx")
        with micro_kernel(name.removeprefix("c++: ")):
            yield


def standard(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, scale=SCALE)


def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attention(q, k, v, scale=SCALE, backend="fused_cpu")


def near_ties(size: float, draws: int, *, exact: bool) -> list[Tensor]:
    """Draw q, k, v whose scores are of this size and differ by about 1 within a row.

    Softmax weights and gradients are then like those of small scores: what the large common part
    costs is rounding alone. With `exact`, every product and partial sum is a number of fp32, and so
    is every score.
    """
    shape = (draws, 1, 48, 16)
    root = max(1.0, size / SCALE) ** 0.5
    if exact:
        small = torch.randint(-2, 3, (2, *shape)).float()
        q, k = small[0], small[1] / 2
        root = 2.0 ** round(torch.tensor(root).log2().item())
        q[..., 0], k[..., 0] = root, root
    else:
        q = torch.randn(shape) * root
        k = torch.randn(draws, 1, 1, 16) * root / 16**0.5 + torch.randn(shape) / root
    return [q, k, torch.randn(shape)]


def errors_by_draw(function, inputs: list[Tensor], exact: list[Tensor]) -> list[Tensor]:
    """Return the error of the output and of each gradient, relative to its largest, per draw."""
    found = run(function, inputs)
    return [
        (a.double() - b).abs().amax((1, 2, 3)) / b.abs().amax((1, 2, 3))
        for a, b in zip(found, exact, strict=True)
    ]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("exact", [True, False], ids=["exact scores", "random scores"])
def test_fp32_error_is_at_most_twice_that_of_standard_attention(cxx, size: float, exact: bool):
    """At the 95th percentile of 200 draws; on exact scores, in the worst of them, too."""
    inputs = near_ties(size, 200, exact=exact)
    truth = run(standard, [t.double() for t in inputs])
    fused, theirs = (errors_by_draw(f, inputs, truth) for f in (ours, standard))
    for name, a, b in zip(NAMES, fused, theirs, strict=True):
        allowed = 2 * b.quantile(0.95)
        assert a.quantile(0.95) <= allowed, f"{name}: {a.quantile(0.95):.2g} > {allowed:.2g}"
        if exact:
            assert a.max() <= 2 * b.max(), f"{name}: {a.max():.2g} > 2 * {b.max():.2g}"


@pytest.mark.parametrize("size", SIZES)
def test_fp32_error_of_two_maps(cxx, size: float):
    """As that of two calls of standard attention whose results are subtracted."""
    (q1, k1, v), (q2, k2, _) = (near_ties(size, 200, exact=False) for _ in range(2))
    inputs = [q1, k1, q2, k2, v]

    def difference(q1, k1, q2, k2, v):
        return standard(q1, k1, v) - 0.7 * standard(q2, k2, v)

    def fused(q1, k1, q2, k2, v):
        return diff_attention(q1, k1, q2, k2, v, 0.7, scale=SCALE, scale2=SCALE)

    truth = run(difference, [t.double() for t in inputs])
    found, theirs = (errors_by_draw(f, inputs, truth) for f in (fused, difference))
    for a, b in zip(found, theirs, strict=True):
        assert a.quantile(0.95) <= 2 * b.quantile(0.95)


@pytest.mark.parametrize("level", ["python", "c++: brgemm fp32"])
@pytest.mark.parametrize("Tq", [5, 70])
@pytest.mark.parametrize("size", [1e10, 1e15, 1e20, 1e30])
def test_limit_of_large_scores(size: float, Tq: int, level: str, request):
    """One key takes all the weight: its value is the output, and scores get no gradient."""
    root = (size / SCALE) ** 0.5
    q1, k1, q2, k2 = (torch.randn(2, 2, T, 16) * root for T in (Tq, 300, Tq, 300))
    v = torch.randn(2, 2, 300, 8)
    best1, best2 = ((q @ k.mT).argmax(-1) for q, k in ((q1, k1), (q2, k2)))
    picked = [torch.gather(v, 2, b[..., None].expand(2, 2, Tq, 8)) for b in (best1, best2)]
    with level_of(level, request):
        out, dq1, dk1, dq2, dk2, dv = run(
            lambda *t: diff_attention(*t, 0.5, backend="fused_cpu"), [q1, k1, q2, k2, v]
        )
    torch.testing.assert_close(out, picked[0] - 0.5 * picked[1])
    assert all(t.eq(0).all() for t in (dq1, dk1, dq2, dk2))
    assert torch.isfinite(dv).all()
    assert dv.ne(0).any()


@pytest.mark.parametrize("size", SIZES)
def test_backward_recomputes_the_weights_bit_by_bit(cxx, size: float):
    """With V = 1, the output is the map; with dO = 1, dV is the map of the backward pass."""
    q, k, _ = near_ties(size, 4, exact=False)
    v = torch.eye(48).expand(4, 1, 48, 48).clone().requires_grad_()
    A = ours(q, k, v)
    (transposed,) = torch.autograd.grad(A, v, torch.eye(48).expand(4, 1, 48, 48))
    assert A.min() < 0.5 * A.max()  # a map with a structure
    assert torch.equal(A, transposed.mT)


@pytest.mark.parametrize("T", [100, 400])
@pytest.mark.parametrize("kernel", KERNELS[:2])
def test_backward_recomputes_the_scores(cxx, T: int, kernel: str):
    """At scores of 1e6, the last bit of a score is worth 6 % of its weight.

    In bf16 the weights are rounded at other places, and with several tiles of keys the running
    maximum changes: the weights differ by their roundoff, but scores do not differ. A BLAS may
    choose another order of summation for another number of rows, and is exempt.
    """
    dtype = torch.bfloat16 if kernel == "brgemm bf16" else torch.float32
    q = torch.randn(1, 2, T, 16).to(dtype)
    k = (torch.randn(1, 2, 1, 16) * 2e6).to(dtype).repeat(1, 1, T, 1)
    k[..., -4:] = 0.0
    k[..., -4:] = torch.randn(1, 2, T, 4).to(dtype)
    v = torch.eye(T, dtype=dtype).expand(1, 2, T, T).clone().requires_grad_()
    with micro_kernel(kernel):
        A = attention(q, k, v, backend="fused_cpu")
        (transposed,) = torch.autograd.grad(A, v, torch.eye(T, dtype=dtype).expand(1, 2, T, T))
    assert (q @ k.mT).abs().max() > 1e6
    tolerance = 2.0**-6 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(A, transposed.mT, rtol=tolerance, atol=1e-30)


@pytest.mark.parametrize("level", ["python", *(f"c++: {name}" for name in KERNELS)])
@pytest.mark.parametrize("Tq", [1, 16])
def test_one_key_whose_row_stride_is_below_its_width(level: str, Tq: int, request):
    w = torch.randn(32).bfloat16()
    keys = {
        "transposed": torch.randn(1, 2, 32, 1).bfloat16().mT,
        "expanded": w.expand(1, 2, 1, 32),
        "sliced": torch.randn(1, 2, 40).bfloat16().unfold(2, 32, 1)[:, :, 3:4],
    }
    q = torch.randn(1, 2, Tq, 32).bfloat16()
    for name, k in keys.items():
        with level_of(level, request):
            out = attention(q, k, k, backend="fused_cpu")
            gradients = run(lambda q, k: attention(q, k, k, backend="fused_cpu"), [q, k])
        torch.testing.assert_close(out, k.expand(1, 2, Tq, 32), msg=name)
        assert torch.isfinite(torch.cat([t.flatten() for t in gradients])).all(), name


# Signalling and quiet NaN, the largest and the smallest payload, both signs.
NAN_BITS = {
    torch.float32: (torch.int32, (0x7FFFFFFF, 0x7FC00000, 0x7F800001, -1)),
    torch.bfloat16: (torch.int16, (0x7FFF, 0x7FC0, 0x7F81, -1)),
    torch.float16: (torch.int16, (0x7FFF, 0x7E00, 0x7C01, -1)),
}
LEVELS = [
    ("python", torch.float32),
    ("c++: brgemm fp32", torch.float32),
    ("c++: brgemm fp32", torch.float16),
    *((f"c++: {name}", torch.bfloat16) for name in KERNELS),
]


@pytest.mark.parametrize(("level", "dtype"), LEVELS, ids=str)
@pytest.mark.parametrize("Tq", [1, 5, 70])
def test_nan_of_any_bits(level: str, dtype: torch.dtype, Tq: int, request):
    """Outputs and gradients are NaN where the reference is; nowhere does a NaN get lost."""
    integer, all_bits = NAN_BITS[dtype]
    case = Case(B=2, H=2, Hkv=1, Tq=Tq, Tk=90, d=16, dv=24)
    for i, name in enumerate(("q1", "k1", "q2", "k2", "v")):
        for bits in all_bits[i % 2 :: 2]:
            inputs = case.inputs(dtype)
            # In v, key 0, to which every row attends: others are multiplied by zero.
            row = min(Tq - 1, 3) if name in ("q1", "q2") else 0 if name == "v" else 60
            inputs[i].view(integer)[0, 0, row, 3] = bits
            expected = run(diff_attention, inputs, causal=True, backend="reference")
            with level_of(level, request):
                found = run(diff_attention, inputs, causal=True, backend="fused_cpu")
                with torch.no_grad():
                    found.append(diff_attention(*inputs, causal=True, backend="fused_cpu"))
            assert expected[0].isnan().any()
            for a, b in zip(found, [*expected, expected[0]], strict=True):
                assert torch.equal(a.isnan(), b.isnan()), (name, hex(bits))


@pytest.mark.parametrize(("level", "dtype"), [x for x in LEVELS if x[1] != torch.float16], ids=str)
@pytest.mark.parametrize("Tq", [3, 70])
@pytest.mark.parametrize("lam", [1e25, -1e30, 1e37])
def test_lambda_of_any_size(level: str, dtype: torch.dtype, Tq: int, lam: float, request):
    *tensors, _ = Case(H=2, Hkv=1, Tq=Tq, Tk=90, d=16, dv=16).inputs(dtype)
    inputs = [*tensors, torch.full((), lam)]

    def f(*t, backend):  # a small upstream gradient: that of k2 would overflow
        return 1e-3 * diff_attention(*t, causal=True, backend=backend)

    expected = run(f, [t.double() for t in inputs], backend="reference")
    with level_of(level, request):
        found = run(f, inputs, backend="fused_cpu")
    tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-5
    for i in (0, 3, 4, 5, 6):  # all but the gradients of q1 and k1, which lam does not enter
        error = (found[i].double() - expected[i]).abs().max() / expected[i].abs().max()
        assert error < tolerance
    assert all(torch.isfinite(t).all() for t in found)


@pytest.mark.parametrize(("level", "dtype"), LEVELS, ids=str)
@pytest.mark.parametrize("Tq", [3, 40])
def test_rows_without_keys_and_a_sink_of_minus_infinity(level, dtype, Tq: int, request):
    q, k, v = (torch.randn(1, 3, T, 16).to(dtype) for T in (Tq, 40, 40))
    sink = torch.tensor([-torch.inf, 0.5, -torch.inf])
    mask = torch.ones(3, Tq, 40, dtype=torch.bool)
    mask[:2, 1] = False  # blind rows of a head without and of one with a sink

    def f(q, k, v, sink, backend):
        return attention(q, k, v, sink=sink, mask=mask, backend=backend)

    expected = run(f, [t.double() for t in (q, k, v, sink)], backend="reference")
    with level_of(level, request):
        found = run(f, [q, k, v, sink], backend="fused_cpu")
    for result in (expected, found):
        out, dq, _, _, dsink = result
        assert out[0, :2, 1].eq(0).all()
        assert dq[0, :2, 1].eq(0).all()
        assert dsink[0] == dsink[2] == 0
        assert dsink[1] != 0
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 5e-3}[dtype]
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("level", "dtype"), LEVELS, ids=str)
@pytest.mark.parametrize("Tq", [1, 3])
@pytest.mark.parametrize("value", [torch.inf, -torch.inf])
def test_infinite_value_at_the_end_of_a_cache(level, dtype, Tq: int, value: float, request):
    """The last values of a cache are read alone, not again with a weight of zero."""
    for Tk in (3, 4, 5, 6, 7, 66):
        inputs = Case(H=2, Hkv=1, Tq=Tq, Tk=Tk).inputs(dtype)
        inputs[4][0, 0, -1, 3] = value
        with torch.no_grad(), level_of(level, request):
            found = diff_attention(*inputs, causal=False, backend="fused_cpu")
        expected = diff_attention(*inputs, causal=False, backend="reference")
        torch.testing.assert_close(found, expected, rtol=3e-2, atol=3e-2, equal_nan=True)


@pytest.mark.parametrize(("level", "dtype"), LEVELS, ids=str)
@pytest.mark.parametrize("Tq", [3, 40])
@pytest.mark.parametrize("low", [-1e300, torch.finfo(torch.float64).min])
def test_bias_beyond_fp32(level, dtype, Tq: int, low: float, request):
    """Keys with it have no weight beside others; where all have it, they share the weight."""
    inputs = Case(B=2, H=2, Hkv=1, Tq=Tq, Tk=50).inputs(dtype)
    mask = torch.zeros(2, 1, Tq, 50, dtype=torch.float64)
    mask[:, :, :, 20:] = low
    mask[1, :, 1] = low
    wide = [t.double() for t in inputs]
    expected = run(lambda *t: diff_attention(*t, mask=mask, backend="reference"), wide)
    with level_of(level, request):
        found = run(lambda *t: diff_attention(*t, mask=mask, backend="fused_cpu"), inputs)
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 4e-2, torch.float16: 5e-3}[dtype]
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("level", "dtype"), LEVELS, ids=str)
@pytest.mark.parametrize("Tq", [3, 40])
def test_large_positive_bias(level, dtype, Tq: int, request):
    """Kernels add biases before they scale; a quotient beyond fp32 stays finite."""
    inputs = Case(Tq=Tq, Tk=50).inputs(dtype)
    mask = torch.full((Tq, 50), torch.finfo(torch.float32).max / 2)
    mask[:, 30:] = 0.0
    wide = [t.double() for t in inputs]
    expected = diff_attention(*wide, mask=mask, backend="reference")
    with level_of(level, request):
        found = diff_attention(*inputs, mask=mask, backend="fused_cpu")
    torch.testing.assert_close(found.double(), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("level", ["python", "c++: brgemm fp32"])
def test_mask_that_leaves_only_keys_beside_the_window(level: str, request):
    """Keys between the kept ones and the window are hidden, whatever the mask says."""
    inputs = Case(B=2, H=2, Hkv=1, Tq=94, Tk=130).inputs(torch.float32)
    for mask in (torch.rand(2, 1, 1, 130) < 0.03, torch.rand(1, 2, 94, 130) < 0.03):
        options = {"causal": True, "mask": mask, "window": 16, "keep_first": 4}
        expected = run(
            lambda *t, o=options: diff_attention(*t, **o, backend="reference"),
            [t.double() for t in inputs],
        )
        with level_of(level, request):
            found = run(lambda *t, o=options: diff_attention(*t, **o), inputs)
        assert expected[0].eq(0).all(-1).any()
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("backend", ["reference", "sdpa", "fused_cpu"])
@pytest.mark.parametrize("name", ["window", "keep_first"])
def test_windows_of_any_size(name: str, backend: str):
    q, k, v = (torch.randn(1, 2, 20, 8) for _ in range(3))
    ids = torch.arange(20) // 7
    for huge in (2**31 - 1, 2**31, 2**63 - 1, 2**64 + 1):
        options = {"causal": True, "window": 2, "backend": backend} | {name: huge}
        found = attention(q, k, v, documents=ids, **options)
        torch.testing.assert_close(found, attention(q, k, v, causal=True, documents=ids))
        decoded = attention(q[:, :, -1:], k, v, **options)
        torch.testing.assert_close(decoded, attention(q[:, :, -1:], k, v, causal=True))
