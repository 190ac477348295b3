"""Every backend and level against the reference: outputs, gradients, odd shapes, masks, dtypes."""

import contextlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphase import backend_for, diff_attention
from antiphase.ops import attention, fused_cpu
from tests.ops.cases import GENERAL, NATIVE, Case, errors, run

BACKENDS = ["sdpa", "python", "c++"]
# Relative to the largest value; 16-bit outputs round at 2^-9 (bf16) and 2^-11 (fp16).
TOLERANCE = {
    torch.float64: 1e-12,
    torch.float32: 5e-6,
    torch.bfloat16: 2e-2,
    torch.float16: 3e-3,
}


@contextlib.contextmanager
def level_of(name: str):
    """Enter the level of a name in `BACKENDS`; yield the name of its backend."""
    with fused_cpu.python_level() if name == "python" else contextlib.nullcontext():
        yield "sdpa" if name == "sdpa" else "fused_cpu"


def check(name: str, case: Case, dtype: torch.dtype, mask=None):
    inputs = case.inputs(dtype)
    expected = run(
        diff_attention,
        [t.double() for t in inputs],
        causal=case.causal,
        mask=mask,
        backend="reference",
    )
    with level_of(name) as backend:
        results = run(diff_attention, inputs, causal=case.causal, mask=mask, backend=backend)
    assert results[0].dtype == dtype
    worst = errors(results, expected)
    assert max(worst) < TOLERANCE[dtype], dict(
        zip(("out", "q1", "k1", "q2", "k2", "v", "lam"), worst, strict=True)
    )


@pytest.mark.parametrize("case", NATIVE + GENERAL, ids=str)
@pytest.mark.parametrize("name", ["sdpa", "python"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=["fp64", "bf16"])
def test_any_shape(name: str, case: Case, dtype: torch.dtype):
    if name == "sdpa" and dtype == torch.bfloat16:
        dtype = torch.float32  # two rounded outputs are subtracted there; see the test below
    check(name, case, dtype)


@pytest.mark.parametrize("case", NATIVE, ids=str)
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["fp32", "bf16", "fp16"]
)
def test_native_shapes(cxx, case: Case, dtype: torch.dtype):
    choice = backend_for(*case.inputs(dtype), causal=case.causal)
    assert (choice.backend, choice.level) == ("fused_cpu", "c++"), choice
    check("c++", case, dtype)


@pytest.mark.parametrize("kernel", [0, 1, 2])
@pytest.mark.parametrize(
    "case", [Case(Tq=130, d=64, dv=128), Case(B=2, H=4, Hkv=2, Tq=77, Tk=300)], ids=str
)
def test_every_bf16_micro_kernel(cxx, monkeypatch, kernel: int, case: Case):
    """The fastest one is chosen at run time; the others must be correct, too."""
    name = fused_cpu.abi.KERNELS[kernel]
    if not cxx.rates[name]:
        pytest.skip(f"{name} is not available on this processor")
    monkeypatch.setitem(cxx.__dict__, "bf16_kernel", kernel)
    check("c++", case, torch.bfloat16)


def test_sdpa_in_bf16():
    check("sdpa", Case(Tq=65), torch.bfloat16)


MASKS = {
    "boolean": lambda c, Tk: torch.rand(c.B, 1, c.Tq, Tk) > 0.4,
    "padding": lambda c, Tk: (torch.arange(Tk) >= 5)[None, None, None, :],
    "additive": lambda c, Tk: torch.randn(1, c.H, c.Tq, Tk, dtype=torch.float64),
    "additive with -inf": lambda c, Tk: torch.zeros(c.Tq, Tk).masked_fill(
        torch.rand(c.Tq, Tk) > 0.6, -torch.inf
    ),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", ["sdpa", "python"])
@pytest.mark.parametrize(
    "case",
    [
        Case(B=2, H=4, Hkv=2, Tq=33),
        Case(B=2, H=4, Hkv=2, Hn=2, Hkv_n=1, Tq=21, Tk=35, causal=False),
        Case(B=2, H=6, Hkv=2, Hn=3, Hkv_n=1, Tq=21, Tk=35),
    ],
    ids=str,
)
def test_masks(name: str, mask: str, case: Case):
    check(name, case, torch.float64, MASKS[mask](case, case.Tk or case.Tq))


@pytest.mark.parametrize("name", ["reference", *BACKENDS])
def test_fully_masked_rows_give_zeros_and_zero_gradients(name: str, request):
    if name == "c++":
        request.getfixturevalue("cxx")
    dtype = torch.float32 if name == "c++" else torch.float64
    inputs = Case(Tq=10, Tk=4).inputs(dtype)  # causal: the first six queries attend to no key
    with level_of(name) as backend:
        backend = "reference" if name == "reference" else backend
        out, *grads = run(diff_attention, inputs, causal=True, backend=backend)
    assert out[:, :, :6].eq(0).all()
    assert out[:, :, 6:].ne(0).any()
    assert all(torch.isfinite(g).all() for g in grads)
    for i in (0, 2, 5):  # dq1, dq2, dlam
        assert grads[i][:, :, :6].eq(0).all()
    mask = torch.ones(10, 4, dtype=torch.bool)
    mask[7] = False
    if name != "c++":
        with level_of(name) as backend:
            backend = "reference" if name == "reference" else backend
            out, *grads = run(diff_attention, inputs, mask=mask, backend=backend)
        assert out[:, :, 7].eq(0).all()
        assert all(torch.isfinite(g).all() for g in grads)
        assert grads[0][:, :, 7].eq(0).all()


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
@pytest.mark.parametrize("lengths", [(40, 40), (5, 40), (30, 70), (50, 20)], ids=str)
def test_one_map_with_a_sink(name: str, causal: bool, lengths, request):
    if name == "c++":
        request.getfixturevalue("cxx")
    dtype = torch.float32 if name == "c++" else torch.float64
    Tq, Tk = lengths
    inputs = [torch.randn(2, h, n, w) for h, n, w in ((4, Tq, 16), (2, Tk, 16), (2, Tk, 24))]
    inputs = [t.to(dtype) for t in (*inputs, 2 * torch.randn(4))]

    def f(q, k, v, sink, backend):
        return attention(q, k, v, sink=sink, causal=causal, backend=backend)

    expected = run(f, [t.double() for t in inputs], backend="reference")
    with level_of(name) as backend:
        results = run(f, inputs, backend=backend)
    assert max(errors(results, expected)) < TOLERANCE[dtype]


@pytest.mark.parametrize("name", BACKENDS)
def test_lam_of_every_shape(name: str, request):
    if name == "c++":
        request.getfixturevalue("cxx")
    dtype = torch.float32 if name == "c++" else torch.float64
    *tensors, _ = Case(B=2, H=4, Tq=20, Hkv=2).inputs(dtype)
    for shape in ((), (1,), (4, 1, 1), (2, 1, 20, 1), (1, 4, 1, 1)):
        inputs = [*tensors, torch.rand(shape, dtype=dtype)]
        expected = run(diff_attention, [t.double() for t in inputs], backend="reference")
        with level_of(name) as backend:
            results = run(diff_attention, inputs, backend=backend)
        assert results[-1].shape == shape
        assert max(errors(results, expected)) < TOLERANCE[dtype], shape
    with level_of(name) as backend:
        number = diff_attention(*tensors, 0.3, backend=backend)
        tensor = diff_attention(*tensors, torch.tensor(0.3, dtype=dtype), backend=backend)
    torch.testing.assert_close(number, tensor)


@pytest.mark.parametrize("name", BACKENDS)
def test_strided_inputs_and_a_fused_projection(name: str, request):
    """Heads sliced out of one projection: no tensor is contiguous."""
    if name == "c++":
        request.getfixturevalue("cxx")
    dtype = torch.float32 if name == "c++" else torch.float64
    B, T, h, d = 2, 37, 3, 16
    x = torch.randn(B, T, h * 6 * d, dtype=dtype)

    def f(x, backend, contiguous=False):
        q, k, v = x.view(B, T, 6 * h, d).split([2 * h, 2 * h, 2 * h], dim=2)
        parts = [q[:, :, 0::2], k[:, :, 0::2], q[:, :, 1::2], k[:, :, 1::2]]
        parts = [t.transpose(1, 2) for t in parts]
        v = v.reshape(B, T, h, 2 * d) if contiguous else v.unflatten(2, (h, 2)).flatten(3)
        parts.append(v.transpose(1, 2))
        if contiguous:
            parts = [t.contiguous() for t in parts]
        return diff_attention(*parts, 0.6, causal=True, backend=backend)

    expected = run(f, [x.double()], backend="reference", contiguous=True)
    with level_of(name) as backend:
        results = run(f, [x], backend=backend)
        channels_apart = torch.randn(1, 2, 16, 20, dtype=dtype).mT  # stride 20 between channels
        q = torch.randn(1, 2, 20, 16, dtype=dtype)
        apart = attention(q, channels_apart, channels_apart, backend=backend)
        together = attention(q, channels_apart.contiguous(), channels_apart, backend=backend)
    assert max(errors(results, expected)) < TOLERANCE[dtype]
    torch.testing.assert_close(apart, together)


def test_sink_in_bf16(cxx):
    inputs = [torch.randn(2, 4, 70, 16).bfloat16() for _ in range(3)] + [torch.randn(4)]

    def f(q, k, v, sink, backend):
        return attention(q, k, v, sink=sink, causal=True, backend=backend)

    expected = run(f, [t.double() for t in inputs], backend="reference")
    assert max(errors(run(f, inputs, backend="fused_cpu"), expected)) < TOLERANCE[torch.bfloat16]


@pytest.mark.parametrize("name", ["sdpa", "python"])
def test_finite_biases_stay_finite_in_16_bits(name: str):
    """The lowest fp32 number, common in padding masks, is -inf in bf16; a row of it is uniform."""
    inputs = Case(Tq=6).inputs(torch.bfloat16)
    mask = torch.full((6, 6), torch.finfo(torch.float32).min)
    mask[3:, :3] = 0.0
    expected = diff_attention(*(t.double() for t in inputs), mask=mask, backend="reference")
    with level_of(name) as backend:
        out = diff_attention(*inputs, mask=mask, backend=backend)
    torch.testing.assert_close(out.double(), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_rows_that_overlap_in_memory(cxx, dtype: torch.dtype):
    """One key expanded over all positions, and windows cut from one sequence."""
    q = torch.randn(1, 2, 20, 16).to(dtype)
    one = torch.randn(1, 2, 1, 16).to(dtype).expand(1, 2, 64, 16)
    windows = torch.randn(1, 2, 79).to(dtype).unfold(2, 16, 1)  # [1, 2, 64, 16], row stride 1
    for k in (one, windows):
        out = attention(q, k, k, backend="fused_cpu")
        torch.testing.assert_close(out, attention(q, k.contiguous(), k.contiguous()))


@pytest.mark.parametrize("name", ["python", "c++"])
@pytest.mark.parametrize("Tq", [1, 70])
def test_one_key_tensor_for_both_maps(name: str, Tq: int, request):
    """DIFF V2: the gradient of the shared key is the sum of both maps'."""
    if name == "c++":
        request.getfixturevalue("cxx")
    dtype = torch.float32 if name == "c++" else torch.float64
    q1, k, q2, _, v, lam = Case(H=4, Hkv=2, Tq=Tq, Tk=70).inputs(dtype)

    def f(q1, k, q2, v, lam, backend):
        return diff_attention(q1, k, q2, k, v, lam, causal=True, backend=backend)

    inputs = [q1, k, q2, v, lam]
    expected = run(f, [t.double() for t in inputs], backend="reference")
    with level_of(name) as backend:
        results = run(f, inputs, backend=backend)
    assert max(errors(results, expected)) < TOLERANCE[dtype]


@pytest.mark.parametrize("name", ["sdpa", "python"])
def test_gradcheck(name: str):
    for case in (Case(Tq=5, Tk=7, d=3, d2=2, dv=4), Case(H=4, Hkv=2, Hn=2, Hkv_n=1, Tq=4, d=2)):
        inputs = [t.requires_grad_() for t in case.inputs()]
        with level_of(name) as backend:

            def f(*tensors, backend=backend, causal=case.causal):
                return diff_attention(*tensors, causal=causal, backend=backend)

            assert torch.autograd.gradcheck(f, inputs)


def test_cached_decoding_equals_the_complete_sequence(cxx):
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 3e-2)):
        q1, k1, q2, k2, v, lam = Case(H=4, Hkv=2, Tq=90).inputs(dtype)
        complete = diff_attention(q1, k1, q2, k2, v, lam, causal=True)
        for rows in (1, 7, 20):
            last = slice(90 - rows, 90)
            decoded = diff_attention(
                q1[:, :, last], k1, q2[:, :, last], k2, v, lam[:, :, last], causal=True
            )
            torch.testing.assert_close(
                decoded, complete[:, :, last], rtol=tolerance, atol=tolerance
            )


@st.composite
def cases(draw, native: bool):
    width = st.sampled_from([8, 16, 24, 40, 64]) if native else st.integers(1, 20)
    Hkv, group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    H = Hkv * group
    Hn = H if native else draw(st.sampled_from([n for n in range(1, H + 1) if H % n == 0]))
    Hkv_n = Hkv if native else draw(st.sampled_from([n for n in range(1, Hn + 1) if Hn % n == 0]))
    return Case(
        B=draw(st.integers(1, 2)),
        H=H,
        Hkv=Hkv,
        Hn=Hn,
        Hkv_n=Hkv_n,
        Tq=draw(st.integers(1, 200)),
        Tk=draw(st.integers(1, 400)),
        d=draw(width),
        d2=draw(width),
        dv=draw(width),
        causal=draw(st.booleans()),
    )


@settings(max_examples=60, deadline=None, derandomize=True)
@given(case=cases(native=True), dtype=st.sampled_from([torch.float32, torch.bfloat16]))
def test_native_search(cxx, case: Case, dtype: torch.dtype):
    check("c++", case, dtype)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(case=cases(native=False), name=st.sampled_from(["sdpa", "python"]), mask=st.booleans())
def test_general_search(case: Case, name: str, mask: bool):
    given_mask = torch.rand(case.B, 1, case.Tq, case.Tk) > 0.5 if mask else None
    check(name, case, torch.float64, given_mask)
