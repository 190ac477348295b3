"""The Triton kernels in Triton's interpreter, against the reference.

`test_triton.py` runs this file in a process of its own: TRITON_INTERPRET acts when a kernel is
decorated. The interpreter's bf16 products are wrong without a word, so bf16 is tested by rounded
inputs in fp32.
"""

import os
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from antiphase import backend_for, diff_attention
from antiphase.ops import attention
from tests.ops.cases import GENERAL, NATIVE, Case, errors, run
from tests.ops.test_backends import TOLERANCE

assert os.environ.get("TRITON_INTERPRET") == "1", "run by test_triton.py"
WIDE = [
    Case(H=4, Hkv=4, Hn=2, Hkv_n=1, Tq=20, dv=140),
    Case(Tq=40, dv=140, causal=False),
    Case(H=1, Hkv=1, Tq=33, Tk=65, d=128, dv=256),
]
ALL = NATIVE + GENERAL + WIDE


def check(case: Case, dtype: torch.dtype = torch.float32, round_to=None, **options) -> None:
    inputs = case.inputs(dtype)
    if round_to is not None:
        inputs = [t.to(round_to).to(dtype) for t in inputs]
    options = {"causal": case.causal, **options}
    wide = [t.double() for t in inputs]
    expected = run(diff_attention, wide, backend="reference", **options)
    results = run(diff_attention, inputs, backend="triton", **options)
    assert results[0].dtype == dtype
    worst = errors(results, expected)
    names = ("out", "q1", "k1", "q2", "k2", "v", "lam")
    assert max(worst) < TOLERANCE[dtype], dict(zip(names, worst, strict=True))
    if case.Tq <= 16:  # without gradients: split keys
        with torch.no_grad():
            decoded = diff_attention(*inputs, backend="triton", **options)
        assert errors([decoded], expected[:1])[0] < TOLERANCE[dtype]


@pytest.mark.parametrize(
    "case",
    [
        Case(),
        Case(B=2, H=4, Hkv=2, Tq=63),
        Case(Tq=1, Tk=1, d=8, dv=8),
        Case(Tq=8, Tk=3),
        Case(H=6, Hkv=2, Tq=5, Tk=70, d=40, dv=24),
        Case(H=6, Hkv=2, Hn=3, Hkv_n=1, Tq=13),
        Case(B=3, H=6, Hkv=3, Hn=2, Hkv_n=2, Tq=9, Tk=4, d=3),
        Case(Tq=7, d=5, d2=3, dv=1),
        WIDE[0],
    ],
    ids=str,
)
def test_named_shapes(case: Case):
    check(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", ALL, ids=str)
@pytest.mark.parametrize("kind", ["fp32", "fp16", "rounded to bf16"])
def test_every_named_shape(case: Case, kind: str):
    if kind == "fp16":
        check(case, torch.float16)
    else:
        check(case, round_to=torch.bfloat16 if "bf16" in kind else None)


def test_fp16():
    check(Case(Tq=20, Tk=37), torch.float16)


IDS = (torch.arange(70) // 23).expand(2, 70)
MASK = torch.ones(2, 1, 1, 70, dtype=torch.bool)
MASK[0, ..., :40] = False  # padding on the left, beyond a block
MASK[1, ..., 60:] = False  # and on the right, with a hole
MASK[1, ..., 3] = False
MASKS = {
    "window": {"window": 9},
    "window, first keys": {"window": 9, "keep_first": 3},
    "documents": {"documents": IDS},
    "padding": {"mask": MASK},
    "everything": {"documents": IDS, "window": 10, "keep_first": 4, "mask": MASK},
    "documents of all": {"documents": IDS[0]},
    "padding of all": {"mask": MASK[:1]},
    "padding of all, window": {"mask": MASK[:1], "window": 30},
}


@pytest.mark.parametrize("name", [*MASKS][:5])
def test_masks(name: str):
    check(Case(B=2, Tq=37, Tk=70), **MASKS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("Tq", [1, 16, 70, 75])
@pytest.mark.parametrize("causal", [True, False])
def test_every_mask(name: str, Tq: int, causal: bool):
    if not causal and "window" in MASKS[name]:
        pytest.skip("a window ends at the query")
    check(Case(B=2, H=4, Hkv=2, Tq=Tq, Tk=70, causal=causal), **MASKS[name])


@pytest.mark.parametrize(
    "sizes",
    [
        (64, 16),
        pytest.param((16, 64), marks=pytest.mark.slow),
        pytest.param((64, 128), marks=pytest.mark.slow),
        pytest.param((128, 32), marks=pytest.mark.slow),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", [None, "everything"])
def test_tiles_that_are_not_square(sizes: tuple[int, int], name: str | None, monkeypatch):
    """A GPU uses larger tiles than the interpreter, with other proportions."""
    from antiphase.ops.triton.kernels import tuning
    from antiphase.ops.triton.kernels.tiles import Tile

    monkeypatch.setattr(tuning, "INTERPRETED", Tile(*sizes, 4, 1, hoist=False))
    options = {} if name is None else MASKS[name]
    for Tq, Tk, dv in ((70, 70, 24), (37, 70, 140), (7, 70, 24)):
        check(Case(B=2, H=2, Hkv=1, Tq=Tq, Tk=Tk, d=16, dv=dv), **options)


@pytest.mark.parametrize("lengths", [(5, 40), (50, 20)], ids=str)
def test_one_map_with_a_sink(lengths):
    Tq, Tk = lengths
    inputs = [torch.randn(2, h, n, w) for h, n, w in ((4, Tq, 16), (2, Tk, 16), (2, Tk, 24))]
    inputs.append(2 * torch.randn(4))

    def f(q, k, v, sink, backend):
        return attention(q, k, v, sink=sink, causal=True, backend=backend)

    expected = run(f, [t.double() for t in inputs], backend="reference")
    assert max(errors(run(f, inputs, backend="triton"), expected)) < 5e-6
    with torch.no_grad():
        assert errors([f(*inputs, backend="triton")], expected[:1])[0] < 5e-6


def test_fully_masked_rows_give_zeros_and_zero_gradients():
    inputs = Case(Tq=10, Tk=4).inputs(torch.float32)  # the first six queries attend to no key
    out, *grads = run(diff_attention, inputs, causal=True, backend="triton")
    assert out[:, :, :6].eq(0).all()
    assert out[:, :, 6:].ne(0).any()
    assert all(torch.isfinite(g).all() for g in grads)
    for i in (0, 2, 5):  # dq1, dq2, dlam
        assert grads[i][:, :, :6].eq(0).all()
    with torch.no_grad():
        assert diff_attention(*inputs, causal=True, backend="triton")[:, :, :6].eq(0).all()


def test_no_tokens_at_all():
    inputs = Case(B=2, Tq=5, Tk=40).inputs(torch.float32)
    mask = torch.ones(2, 1, 1, 40, dtype=torch.bool)
    mask[1] = False
    out, *grads = run(diff_attention, inputs, mask=mask, backend="triton")
    assert out[1].eq(0).all()
    assert all(torch.isfinite(g).all() and g[1].eq(0).all() for g in grads)


def test_lam_of_every_shape():
    *tensors, _ = Case(B=2, H=4, Tq=20, Hkv=2).inputs(torch.float32)
    for shape in ((), (4, 1, 1), (2, 1, 20, 1)):
        inputs = [*tensors, torch.rand(shape)]
        expected = run(diff_attention, [t.double() for t in inputs], backend="reference")
        results = run(diff_attention, inputs, backend="triton")
        assert results[-1].shape == shape
        assert max(errors(results, expected)) < 5e-6, shape


@pytest.mark.parametrize("Tq", [1, 40])
def test_one_key_tensor_for_both_maps(Tq: int):
    """DIFF V2: the gradient of the shared key is the sum of both maps'."""
    q1, k, q2, _, v, lam = Case(H=4, Hkv=2, Tq=Tq, Tk=40).inputs(torch.float32)

    def f(q1, k, q2, v, lam, backend):
        options = {"causal": True, "scale": 0.3, "scale2": 0.2, "backend": backend}
        return diff_attention(q1, k, q2, k, v, lam, **options)

    inputs = [q1, k, q2, v, lam]
    expected = run(f, [t.double() for t in inputs], backend="reference")
    assert max(errors(run(f, inputs, backend="triton"), expected)) < 5e-6


def test_strided_inputs():
    """Heads sliced out of one projection, and channels that are not next to each other."""
    B, T, h, d = 2, 20, 2, 16

    def f(x, backend):
        q, k, v = x.view(B, T, 6 * h, d).split([2 * h, 2 * h, 2 * h], dim=2)
        parts = [q[:, :, 0::2], k[:, :, 0::2], q[:, :, 1::2], k[:, :, 1::2]]
        v = v.unflatten(2, (h, 2)).flatten(3)
        parts = [t.transpose(1, 2) for t in (*parts, v)]
        return diff_attention(*parts, 0.6, causal=True, backend=backend)

    x = torch.randn(B, T, h * 6 * d)
    expected = run(f, [x.double()], backend="reference")
    assert max(errors(run(f, [x], backend="triton"), expected)) < 5e-6
    apart = torch.randn(1, 2, 16, 20).mT  # stride 20 between channels
    q = torch.randn(1, 2, 20, 16)
    together = attention(q, apart.contiguous(), apart.contiguous(), backend="reference")
    torch.testing.assert_close(attention(q, apart, apart, backend="triton"), together)


def test_gradients_repeat_bit_by_bit():
    inputs = Case(H=4, Hkv=1, Hn=2, Hkv_n=2, Tq=40).inputs(torch.float32)
    first, second = (run(diff_attention, inputs, causal=True, backend="triton") for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_extreme_scores():
    inputs = Case(Tq=20).inputs(torch.float32)
    inputs[0] *= 300
    inputs[3] *= 300
    wide = [t.double() for t in inputs]
    expected = run(diff_attention, wide, causal=True, backend="reference")
    found = run(diff_attention, inputs, causal=True, backend="triton")
    assert all(torch.isfinite(t).all() for t in found)
    assert max(errors(found, expected)) < 1e-3


@st.composite
def calls(draw):
    Hkv, group = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    H = Hkv * group
    Hn = draw(st.sampled_from([n for n in range(1, H + 1) if H % n == 0]))
    Hkv_n = draw(st.sampled_from([n for n in range(1, Hn + 1) if Hn % n == 0]))
    widths = st.sampled_from([1, 7, 16, 24, 33])
    lengths = st.integers(1, 80)
    causal = draw(st.booleans())
    case = Case(
        draw(st.integers(1, 2)), H, Hkv, Hn, Hkv_n, draw(lengths), draw(lengths),
        draw(widths), draw(widths), draw(widths), causal,
    )  # fmt: skip
    options = {}
    if causal and draw(st.booleans()):
        options = {"window": draw(st.integers(1, 90)), "keep_first": draw(st.integers(0, 9))}
    if draw(st.booleans()):
        options["documents"] = torch.tensor(draw(st.lists(st.integers(0, 1), min_size=case.Tk,
                                                          max_size=case.Tk))).cumsum(0)  # fmt: skip
    if draw(st.booleans()):
        seed = draw(st.integers(0, 99))
        mask = torch.rand(case.B, case.Tk, generator=torch.Generator().manual_seed(seed)) > 0.3
        options["mask"] = mask[:, None, None]
    return case, options


@settings(max_examples=3, deadline=None, derandomize=True)
@given(call=calls())
def test_some_odd_shapes(call):
    check(call[0], **call[1])


@pytest.mark.slow
@settings(max_examples=80, deadline=None, derandomize=True)
@given(call=calls())
def test_odd_shapes(call):
    check(call[0], **call[1])


OPERATOR = torch.ops.antiphase.triton_attention.default
OPTIONS = (True, 0, 0, 0.25, 0.25)


def test_operators_pass_torch_library_checks():
    tensors = [t.requires_grad_() for t in Case(H=1, Hkv=1, Tq=9).inputs(torch.float32)]
    torch.library.opcheck(OPERATOR, (*tensors, None, None, None, *OPTIONS, True))


def test_compiled_equals_eager():
    torch._dynamo.reset()
    inputs = Case(H=4, Hkv=2, Tq=20).inputs(torch.float32)

    def f(*tensors):
        return diff_attention(*tensors, causal=True, backend="triton").square()

    eager = run(f, inputs)
    compiled = run(torch.compile(f, fullgraph=True, backend="aot_eager"), inputs)
    assert max(errors(compiled, [t.double() for t in eager])) < 1e-6


def test_export_keeps_one_operator():
    class Module(torch.nn.Module):
        def forward(self, q, k, v, sink):
            return attention(q, k, v, sink=sink, causal=True, backend="triton")

    inputs = (*(torch.randn(1, 2, 20, 16) for _ in range(3)), torch.randn(2))
    program = torch.export.export(Module(), inputs)
    targets = [str(n.target) for n in program.graph.nodes if n.op == "call_function"]
    assert sum("antiphase.triton_attention" in t for t in targets) == 1
    torch.testing.assert_close(program.module()(*inputs), Module()(*inputs))


def test_flops():
    inputs = [t.requires_grad_() for t in Case(Tq=20, d=16, dv=32).inputs(torch.float32)]
    with FlopCounterMode(display=False) as forward:
        out = diff_attention(*inputs, backend="triton")
    with FlopCounterMode(display=False) as backward:
        out.sum().backward()
    pairs = 2 * 2 * 20 * 20  # heads, multiply and add, rows, keys
    assert forward.get_total_flops() == pairs * (2 * 16 + 2 * 32)
    assert backward.get_total_flops() == pairs * (6 * 16 + 2 * 32)


def test_what_the_operator_refuses():
    q1, k1, q2, k2, v, lam = Case(Tq=9).inputs(torch.float32)
    for changed in (
        {"k1": k1[:, :, :5]},
        {"lam": lam[:, :, :5]},
        {"lam": None},
        {"q2": q2[:, :1, :4]},
    ):
        given = {"q1": q1, "k1": k1, "q2": q2, "k2": k2, "v": v, "lam": lam} | changed
        with pytest.raises(ValueError, match="triton_attention"):
            OPERATOR(*given.values(), None, None, None, *OPTIONS, False)
    out = OPERATOR(q1.requires_grad_(), k1, q2, k2, v, lam, None, None, None, *OPTIONS, False)[0]
    with pytest.raises(RuntimeError, match="save=True"):
        out.sum().backward()


def test_second_derivatives_and_batched_gradients():
    inputs = [t.requires_grad_() for t in Case(Tq=5).inputs(torch.float32)]
    out = diff_attention(*inputs, causal=True, backend="triton")
    dout = torch.randn(2, *out.shape)
    batched = torch.autograd.grad(out, inputs, dout, is_grads_batched=True, retain_graph=True)
    single = torch.autograd.grad(out, inputs, dout[1], create_graph=True)
    for a, b in zip(batched, single, strict=True):
        torch.testing.assert_close(a[1], b, rtol=1e-4, atol=1e-5)
    with pytest.raises(RuntimeError, match="no second derivatives"):
        single[0].sum().backward()


def test_empty_batch():
    inputs = [t[:0].requires_grad_() for t in Case(B=2, Tq=5).inputs(torch.float32)]
    out = OPERATOR(*inputs, None, None, None, *OPTIONS, True)[0]
    assert out.shape == (0, 2, 5, 32)
    out.sum().backward()
    assert inputs[0].grad.shape == inputs[0].shape


def test_requested_only():
    inputs = Case(Tq=5).inputs(torch.float32)
    assert backend_for(*inputs).backend == "fused_cpu"
    assert backend_for(*inputs, backend="triton").backend == "triton"


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, pytest.param(torch.float16, marks=pytest.mark.slow)],
    ids=["fp32", "fp16"],
)
def test_the_check_of_a_device(dtype: torch.dtype, monkeypatch):
    """It passes here, and finds a kernel that is wrong."""
    from antiphase.ops.triton import self_check
    from antiphase.ops.triton.kernels import launch

    assert self_check.check(torch.device("cpu"), dtype) is None
    right = launch.backward

    def wrong(*args):
        dq1, *rest = right(*args)
        return 1.2 * dq1, *rest

    monkeypatch.setattr(launch, "backward", wrong)
    assert "relative error" in self_check.check(torch.device("cpu"), dtype)


def test_the_package_kernels_loads_the_folder(tmp_path: Path, monkeypatch):
    kernels = pytest.importorskip("kernels", reason="`kernels` is not installed")
    from antiphase.ops.triton.hub_layout import write_kernel_repository

    write_kernel_repository(tmp_path)
    monkeypatch.setenv("LOCAL_KERNELS", f"someone/antiphase={tmp_path}")
    for loaded in (
        kernels.get_local_kernel(tmp_path),
        kernels.get_kernel("someone/antiphase", version=1),
    ):
        assert str(tmp_path) in loaded.__file__
        inputs = Case(Tq=20).inputs(torch.float32)
        found = run(loaded.diff_attention, inputs, causal=True)
        expected = run(
            diff_attention, [t.double() for t in inputs], causal=True, backend="reference"
        )
        assert max(errors(found, expected)) < 5e-6
    q, k, v = (torch.randn(2, 2, 9, 16) for _ in range(3))
    tokens = torch.arange(9)[None] >= torch.tensor([[0], [4]])
    layer = torch.nn.Linear(1, 1)
    found, _ = loaded.attention_forward(layer, q, k, v, tokens, scaling=0.5)
    expected = attention(q, k, v, causal=True, mask=tokens[:, None, None], scale=0.5)
    torch.testing.assert_close(found.transpose(1, 2), expected)
    with pytest.raises(ValueError, match="attention_mask"):
        loaded.attention_forward(layer, q, k, v, torch.zeros(2, 1, 9, 9), scaling=0.5)


def test_the_benchmark_of_a_gpu(monkeypatch):
    """Its code, with a CPU in the place of the GPU: which calls are compared, and that they run."""
    from antiphase.benchmarks import attention as benchmark
    from antiphase.benchmarks import attention_cases, timing

    monkeypatch.setattr(benchmark, "GPU_PRODUCT", 16)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 30, 1 << 30))
    monkeypatch.setattr(timing, "_gpu_peak", lambda work, device: 7)
    setting = benchmark.AttentionSetting("fp32", 20, 1, heads=2, width=8, device="cpu:0")
    cell = benchmark.measure_cell(setting, backward=True, rounds=1)
    names = {row.name for row in cell.rows}
    assert {benchmark.STANDARD, benchmark.FUSED_GPU, benchmark.ONE_MAP_GPU} <= names
    assert not {benchmark.FUSED, benchmark.PYTHON} & names
    assert all(row.peak_bytes == 7 and row.one_map is not None for row in cell.rows)
    for kind in ("padded", "packed", "window", "v2"):
        found = attention_cases.measure_cases(setting, kind, backward=False, rounds=1)
        assert all(case.wall.median > 0 for case in found)
