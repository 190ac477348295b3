"""Windows, documents, dropout and soft-cap in every backend, against loops that share no code."""

import pytest
import torch
from torch import Tensor

from antiphase import attention_maps, backend_for, diff_attention
from antiphase.ops import attention, attention_map, rectified_attention
from tests.ops.cases import Case, errors, run
from tests.ops.loop import attention_by_loops

BACKENDS = ["auto", "reference", "sdpa", "fused_cpu"]
SEED = torch.tensor(-7_301_562_049_215_630_721)

CALLS = {
    "window": {"causal": True, "window": 3},
    "window of 1": {"causal": True, "window": 1},
    "window beyond the keys": {"causal": True, "window": 50},
    "window and first keys": {"causal": True, "window": 3, "keep_first": 2},
    "more first keys than the window": {"causal": True, "window": 1, "keep_first": 4},
    "documents": {"documents": "ids"},
    "causal documents": {"causal": True, "documents": "ids"},
    "same documents in every sequence": {"causal": True, "documents": "row"},
    "documents of length 1": {"causal": True, "documents": "single"},
    "documents, window and first keys": {
        "causal": True,
        "documents": "ids",
        "window": 2,
        "keep_first": 1,
    },
    "documents, window and padding": {
        "causal": True,
        "documents": "ids",
        "window": 3,
        "mask": "padding",
    },
    "documents and an additive mask": {"documents": "ids", "mask": "additive"},
    "soft-cap": {"causal": True, "softcap": 0.7},
    "soft-cap of a masked call": {"softcap": 2.0, "mask": "padding"},
    "dropout": {"dropout": 0.4, "dropout_seed": SEED},
    "all": {
        "causal": True,
        "documents": "ids",
        "window": 3,
        "keep_first": 1,
        "mask": "padding",
        "softcap": 1.5,
        "dropout": 0.3,
        "dropout_seed": SEED,
    },
}
SHAPES = [
    Case(B=2, H=2, Hkv=1, Tq=7, d=3, dv=2),
    Case(B=2, H=2, Hkv=2, Hn=1, Hkv_n=1, Tq=4, Tk=9, d=4, d2=2, dv=3),
    Case(B=2, H=1, Hkv=1, Tq=8, Tk=5, d=2, dv=2),
]


def options_of(name: str, B: int, H: int, Tq: int, Tk: int) -> dict:
    """Return the options of a call in `CALLS` with its tensors drawn."""
    options = dict(CALLS[name])
    ids = torch.tensor([[0, 0, 0, 2, 2, 2, 0, 0, 5], [1, 1, 2, 2, 2, 2, 3, 4, 4]])[:, :Tk]
    tensors = {
        "ids": ids[:B],
        "row": ids[1],
        "single": torch.arange(Tk),
        "padding": (torch.arange(Tk) != 1)[None, None, None],
        "additive": torch.randn(1, H, Tq, Tk, dtype=torch.float64),
    }
    return {k: tensors[v] if isinstance(v, str) else v for k, v in options.items()}


def for_loops(options: dict) -> dict:
    """Return the options under the names of `attention_by_loops`."""
    options = dict(options)
    if (seed := options.pop("dropout_seed", None)) is not None:
        options["seed"] = int(seed)
    return options


@pytest.mark.parametrize("case", SHAPES, ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_two_maps(name: str, case: Case):
    torch.manual_seed(0)
    inputs = case.inputs()
    options = options_of(name, case.B, case.H, case.Tq, case.Tk or case.Tq)

    def loops(q1, k1, q2, k2, v, lam):
        return attention_by_loops([(q1, k1), (q2, k2)], v, lam, **for_loops(options))

    expected = run(loops, inputs)
    for backend in BACKENDS:
        results = run(diff_attention, inputs, **options, backend=backend)
        assert max(errors(results, expected)) < 1e-12, backend


@pytest.mark.parametrize("name", CALLS)
def test_one_map_with_a_sink(name: str):
    torch.manual_seed(0)
    q, k, _, _, v, _ = Case(B=2, H=2, Hkv=1, Tq=6, Tk=8, d=3, dv=2).inputs()
    options = options_of(name, 2, 2, 6, 8)
    sink = torch.randn(2, dtype=torch.float64)

    def loops(q, k, v, sink):
        return attention_by_loops([(q, k)], v, sink=sink, **for_loops(options))

    def ours(q, k, v, sink, backend):
        return attention(q, k, v, sink=sink, **options, backend=backend)

    expected = run(loops, [q, k, v, sink])
    for backend in BACKENDS:
        results = run(ours, [q, k, v, sink], backend=backend)
        assert max(errors(results, expected)) < 1e-12, backend


@pytest.mark.parametrize("name", CALLS)
def test_rectified(name: str):
    torch.manual_seed(0)
    case = SHAPES[1]
    inputs = case.inputs()
    options = options_of(name, case.B, case.H, case.Tq, case.Tk)

    def loops(q1, k1, q2, k2, v, lam):
        options_ = for_loops(options)
        return attention_by_loops([(q1, k1), (q2, k2)], v, lam, rectify=True, **options_)

    worst = errors(run(rectified_attention, inputs, **options), run(loops, inputs))
    assert max(worst) < 1e-12


@pytest.mark.parametrize("name", CALLS)
def test_maps_give_the_output(name: str):
    case = Case(B=2, H=4, Hkv=2, Tq=5, Tk=9, d=8, dv=8)
    q1, k1, q2, k2, v, lam = case.inputs()
    options = options_of(name, 2, 4, 5, 9)
    values = v.repeat_interleave(2, dim=1)
    maps = attention_maps(q1, k1, q2, k2, v, lam, **options)
    out = diff_attention(q1, k1, q2, k2, v, lam, **options)
    torch.testing.assert_close(maps.A @ values, out)
    A = attention_map(q1, k1, v, **options)
    torch.testing.assert_close(A @ values, attention(q1, k1, v, **options))
    if not options.get("dropout"):
        torch.testing.assert_close(A, maps.A1)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_narrow_dtypes(name: str, dtype: torch.dtype):
    case = Case(B=2, H=2, Hkv=1, Tq=9, d=8, dv=8)
    inputs = case.inputs(dtype)
    options = options_of(name, 2, 2, 9, 9)
    exact = run(diff_attention, [t.double() for t in inputs], **options, backend="reference")
    results = run(diff_attention, inputs, **options)
    assert results[0].dtype == dtype
    assert max(errors(results, exact)) < (5e-6 if dtype == torch.float32 else 2e-2)


@pytest.mark.parametrize("backend", ["reference", "sdpa", "auto"])
@pytest.mark.parametrize("name", CALLS)
def test_numerical_gradients(name: str, backend: str):
    case = Case(H=2, Hkv=1, Tq=4, Tk=5, d=2, dv=2)
    options = options_of(name, 1, 2, 4, 5)
    inputs = [t.requires_grad_() for t in case.inputs()]
    assert torch.autograd.gradcheck(
        lambda *t: diff_attention(*t, **options, backend=backend), inputs
    )


def blind_rows(out: Tensor, grads: list[Tensor], rows: slice) -> None:
    """Assert that rows which attend to no key give zeros, also as gradients of their queries."""
    assert out[:, :, rows].eq(0).all()
    assert all(g.isfinite().all() for g in grads)
    for i in (0, 2, 5):  # dq1, dq2, dlam
        assert grads[i][:, :, rows].eq(0).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_that_see_no_key_give_zeros(backend: str):
    inputs = Case(B=1, Tq=9, Tk=6).inputs()
    ids = torch.tensor([0, 0, 1, 1, 1, 1])
    for options in ({"causal": True, "window": 2}, {"documents": ids}, {"softcap": 1.0}):
        out, *grads = run(diff_attention, inputs, **options, backend=backend)
        if "softcap" not in options:  # the first three queries lie before the first key
            blind_rows(out, grads, slice(0, 3))
        assert out[:, :, 3:].ne(0).all()
    padding = (torch.arange(6) > 1)[None, None, None]  # the complete first document
    out, *grads = run(diff_attention, inputs, documents=ids, mask=padding, backend=backend)
    blind_rows(out, grads, slice(0, 5))
    assert out[:, :, 5:].ne(0).all()


def test_decoding_equals_the_complete_call():
    q1, k1, q2, k2, v, lam = Case(B=2, H=2, Hkv=2, Tq=9).inputs()
    ids = options_of("documents", 2, 2, 9, 9)["documents"]
    options = {
        "causal": True,
        "window": 3,
        "keep_first": 1,
        "softcap": 2.0,
        "dropout": 0.3,
        "dropout_seed": SEED,
    }
    complete = diff_attention(q1, k1, q2, k2, v, lam, documents=ids, **options)
    for t in range(9):
        row, past = slice(t, t + 1), slice(t + 1)
        out = diff_attention(
            q1[:, :, row], k1[:, :, past], q2[:, :, row], k2[:, :, past], v[:, :, past],
            lam[:, :, row], documents=ids[:, past], **options,
        )  # fmt: skip
        torch.testing.assert_close(out, complete[:, :, row])


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_key_tensor_for_both_maps(backend: str):
    """DIFF V2: `Arguments` keeps the key once; its gradient is the sum of both maps'."""
    q1, k, q2, _, v, lam = Case(H=4, Hkv=2, Hn=2, Tq=9).inputs()

    def f(q1, k, q2, v, lam, backend, copy=False):
        second = k.clone() if copy else k
        return diff_attention(q1, k, q2, second, v, lam, causal=True, window=4, backend=backend)

    inputs = [q1, k, q2, v, lam]
    expected = run(f, inputs, backend="reference", copy=True)
    assert max(errors(run(f, inputs, backend=backend), expected)) < 1e-12


def test_auto_says_what_runs_a_call():
    inputs = Case(Tq=8, d=8, dv=8).inputs(torch.float32)
    assert backend_for(*inputs, causal=True, window=3).backend in ("sdpa", "fused_cpu")
    assert backend_for(*inputs, softcap=3.0).backend in ("reference", "fused_cpu")
    before = torch.get_rng_state()
    assert backend_for(*inputs, dropout=0.1).backend in ("reference", "fused_cpu")
    assert torch.equal(torch.get_rng_state(), before)  # a report draws no seed


@pytest.mark.parametrize("name", CALLS)
def test_empty_batches(name: str):
    options = options_of(name, 2, 2, 9, 9)
    for key in ("documents", "mask"):
        if key in options and options[key].dim() == 2:
            options[key] = options[key][:0]
    inputs = [t[:0] for t in Case(B=2, Tq=9).inputs()]
    out, *grads = run(diff_attention, inputs, **options)
    assert out.shape == (0, 2, 9, 32)
    assert grads[0].shape == inputs[0].shape
