"""What calls the operators beside the public functions: programs, transforms, hooks, by hand."""

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor
from torch.func import grad, jacfwd, jacrev, jvp, vjp, vmap

from antiphase import diff_attention
from antiphase.ops import attention, fused_cpu
from tests.ops.cases import Case, errors, run

FORWARD = torch.ops.antiphase.fused_attention.default
BACKWARD = torch.ops.antiphase.fused_attention_backward.default


def operator_arguments(**changed) -> dict[str, object]:
    """Return arguments of the forward operator by name, some of them changed."""
    q1, k1, q2, k2, v, lam = Case(B=2, H=4, Hkv=2, Tq=20, Tk=40).inputs(torch.float32)
    documents = torch.tensor([0, 40], dtype=torch.int32).expand(2, 20, 2)
    tensors = {"q1": q1, "k1": k1, "q2": q2, "k2": k2, "v": v, "lam": lam, "sink": None}
    tensors |= {"mask": None, "documents": documents, "seed": None}
    options = {"causal": True, "window": 0, "keep_first": 0, "dropout": 0.0, "softcap": 0.0}
    return {**tensors, **options, "scale1": 0.25, "scale2": 0.25} | changed


class Program(torch.nn.Module):
    """A module to export."""

    def forward(self, q1, k1, q2, k2, v, lam):
        return diff_attention(q1, k1, q2, k2, v, lam, causal=True, backend="fused_cpu")


def export() -> torch.nn.Module:
    inputs = tuple(Case(B=2, Tq=5).inputs(torch.float32))
    batch = torch.export.Dim("batch", min=0, max=64)
    shapes = tuple({0: batch} for _ in inputs)
    return torch.export.export(Program(), inputs, dynamic_shapes=shapes).module()


@pytest.mark.parametrize("level", ["python", "c++"])
def test_empty_batch(level: str, request):
    """An exported program with a dynamic batch, the operators themselves, and the function."""
    if level == "c++":
        request.getfixturevalue("cxx")
    dtype = torch.float64 if level == "python" else torch.float32
    inputs = [t[:0] for t in Case(B=2, Tq=5).inputs(dtype)]
    if level == "c++":
        assert export()(*inputs).shape == (0, 2, 5, 32)
    options = (None, None, None, None, True, 0, 0, 0.0, 0.0, 0.25, 0.25)
    out, statistics = FORWARD(*inputs, *options)
    assert out.shape == (0, 2, 5, 32)
    gradients = BACKWARD(out, statistics, *inputs, *options)
    assert [g.shape for g in gradients] == [t.shape for t in inputs]
    for function in (diff_attention, lambda *t: FORWARD(*t, *options)[0]):
        leaves = [t.clone().requires_grad_() for t in inputs]
        found = torch.autograd.grad(function(*leaves).sum(), leaves)
        assert [g.shape for g in found] == [t.shape for t in inputs]


WRONG = {
    "k1: fewer keys": ("v", {"k1": torch.zeros(2, 2, 30, 16)}),
    "k1: fewer channels": ("k1", {"k1": torch.zeros(2, 2, 40, 8)}),
    "k1: fewer batch entries": ("k1", {"k1": torch.zeros(1, 2, 40, 16)}),
    "k1: three dimensions": ("k1", {"k1": torch.zeros(2, 2, 40)}),
    "k1: heads that do not divide": ("k1", {"k1": torch.zeros(2, 3, 40, 16)}),
    "k1: another dtype": ("k1", {"k1": torch.zeros(2, 2, 40, 16).double()}),
    "v: fewer keys": ("v", {"v": torch.zeros(2, 2, 39, 32)}),
    "v: fewer heads": ("v", {"v": torch.zeros(2, 1, 40, 32)}),
    "v: no channels": ("v", {"v": torch.zeros(2, 2, 40, 0)}),
    "q2: fewer rows": ("q2", {"q2": torch.zeros(2, 4, 19, 16)}),
    "q2: another width without k2": ("q2", {"q2": torch.zeros(2, 4, 20, 8), "k2": None}),
    "k2: fewer keys": ("k2", {"k2": torch.zeros(2, 2, 10, 16)}),
    "k2: more heads than q2": ("k2", {"q2": torch.zeros(2, 1, 20, 16)}),
    "no q2": ("q2 and lam", {"q2": None, "k2": None}),
    "no lam": ("q2 and lam", {"lam": None}),
    "lam: fewer rows": ("lam", {"lam": torch.zeros(2, 4, 10, 1)}),
    "lam: another dtype": ("lam", {"lam": torch.zeros(2, 4, 20, 1).bfloat16()}),
    "sink: fewer heads": ("sink", {"sink": torch.zeros(2)}),
    "mask: fewer keys": ("mask", {"mask": torch.ones(1, 1, 1, 30, dtype=torch.bool)}),
    "mask: two dimensions": ("mask", {"mask": torch.ones(20, 40, dtype=torch.bool)}),
    "mask: integers": ("mask", {"mask": torch.ones(1, 1, 20, 40, dtype=torch.int32)}),
    "mask: wider floats": ("mask", {"mask": torch.ones(1, 1, 20, 40).double()}),
    "documents: one row": ("documents", {"documents": torch.zeros(2, 1, 2, dtype=torch.int32)}),
    "documents: int64": ("documents", {"documents": torch.zeros(2, 20, 2, dtype=torch.int64)}),
    "documents: behind the keys": ("documents", {"documents": torch.full((2, 20, 2), 41).int()}),
    "documents: before the keys": ("documents", {"documents": torch.full((2, 20, 2), -1).int()}),
    "documents: end before begin": (
        "documents",
        {"documents": torch.tensor([9, 3]).int().expand(2, 20, 2)},
    ),
    "documents: descending": (
        "documents",
        {"documents": torch.arange(20).flip(0).int()[None, :, None].expand(2, 20, 2)},
    ),
    "window: not causal": ("window", {"window": 3, "causal": False}),
    "keep_first: negative": ("window", {"window": 3, "keep_first": -1}),
    "dropout: no seed": ("dropout", {"dropout": 0.5}),
    "dropout: certain": ("dropout", {"dropout": 1.0, "seed": torch.tensor(1)}),
}


@pytest.mark.parametrize("name", WRONG)
def test_operators_check_sizes_themselves(name: str):
    """A kernel would read beyond a tensor."""
    argument, changed = WRONG[name]
    arguments = operator_arguments(**changed)
    with pytest.raises(ValueError, match=f"fused_attention: {argument}|only the batch"):
        FORWARD(**arguments)
    dout, statistics = torch.zeros(2, 4, 20, 32), torch.zeros(4, 2, 4, 20)
    with pytest.raises(ValueError, match=f"fused_attention: {argument}|only the batch"):
        BACKWARD(dout, statistics, **arguments)


@pytest.mark.parametrize("name", ["dout", "stats"])
def test_backward_operator_checks_what_it_saved(name: str):
    given = {"dout": torch.zeros(2, 4, 20, 32), "stats": torch.zeros(4, 2, 4, 20)}
    BACKWARD(**given, **operator_arguments())
    for wrong in (given[name][..., :5], given[name][:1], given[name].double()):
        with pytest.raises(ValueError, match=f"fused_attention: {name}"):
            BACKWARD(**(given | {name: wrong}), **operator_arguments())


def formula(*inputs: Tensor) -> Tensor:
    return diff_attention(*inputs, causal=True, backend="reference")


def automatic(*inputs: Tensor) -> Tensor:
    return diff_attention(*inputs, causal=True)


def fused(*inputs: Tensor) -> Tensor:
    return diff_attention(*inputs, causal=True, backend="fused_cpu")


TRANSFORMS = {
    "jvp": lambda f, t: jvp(f, t, tuple(x.cos() for x in t)),
    "jvp over v": lambda f, t: jvp(lambda v: f(*t[:4], v, t[5]), (t[4],), (t[4].cos(),)),
    "vjp": lambda f, t: vjp(f, *t)[1](torch.ones(1, 2, 3, 4, dtype=torch.float64)),
    "grad": lambda f, t: grad(lambda *x: f(*x).square().sum(), argnums=(0, 1, 2, 3, 4, 5))(*t),
    "jacrev": lambda f, t: jacrev(f, argnums=(1, 5))(*t),
    "jacfwd": lambda f, t: jacfwd(f, argnums=(1, 5))(*t),
    "vmap": lambda f, t: vmap(f)(*(torch.stack([x, x.sin()]) for x in t)),
    "hessian": lambda f, t: jacfwd(jacrev(lambda lam: f(*t[:5], lam).square().sum()))(t[5]),
}


def flat(result) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else [x for part in result for x in flat(part)]


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(name: str):
    """They run by the formula; the fused backend says that it cannot."""
    inputs = tuple(Case(Tq=3, d=3, dv=4).inputs())
    expected = flat(TRANSFORMS[name](formula, inputs))
    found = flat(TRANSFORMS[name](automatic, inputs))
    assert max(float(t.abs().max()) for t in expected) > 0.1
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)
    with pytest.raises(ValueError, match="'fused_cpu' supports neither forward-mode AD nor"):
        TRANSFORMS[name](fused, inputs)


def test_forward_mode_ad():
    inputs = Case(Tq=3, d=3, dv=4).inputs()
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(t, t.cos()) for t in inputs]
        found, expected = (forward_ad.unpack_dual(f(*duals)) for f in (automatic, formula))
        torch.testing.assert_close(found.tangent, expected.tangent)
        with pytest.raises(ValueError, match="'fused_cpu' supports neither forward-mode AD nor"):
            fused(*duals)


def test_programs_do_not_lose_tangents():
    """An exported program holds the operator and cannot take another backend."""
    program, inputs = export(), tuple(Case(B=2, Tq=5).inputs(torch.float32))
    with pytest.raises(RuntimeError, match="does not support forward-mode AD"):
        jvp(program, inputs, inputs)


@pytest.mark.parametrize("level", ["python", "c++"])
def test_batched_gradients(level: str, request):
    if level == "c++":
        request.getfixturevalue("cxx")
    dtype = torch.float64 if level == "python" else torch.float32
    inputs = [t.requires_grad_() for t in Case(B=2, Tq=20).inputs(dtype)]
    out = diff_attention(*inputs, causal=True)
    dout = torch.randn(3, *out.shape, dtype=dtype)
    batched = torch.autograd.grad(out, inputs, dout, is_grads_batched=True, retain_graph=True)
    for i in range(3):
        single = torch.autograd.grad(out, inputs, dout[i], retain_graph=True)
        for a, b in zip(batched, single, strict=True):
            torch.testing.assert_close(a[i], b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=["strided", "jagged"])
@pytest.mark.parametrize("enabled", [True, False], ids=["grad", "no grad"])
def test_nested_tensors_raise(layout: torch.layout, enabled: bool):
    parts = [torch.randn(3, 2, 8), torch.randn(5, 2, 8)]
    nested = torch.nested.nested_tensor(parts, layout=layout).transpose(1, 2)
    q = torch.randn(2, 2, 3, 8)
    with torch.set_grad_enabled(enabled), pytest.raises(ValueError, match="q1: is a nested tensor"):
        attention(nested, nested, nested)
    with torch.set_grad_enabled(enabled), pytest.raises(ValueError, match="k2: is a nested tensor"):
        diff_attention(q, q, q, nested, q, 0.5)


@pytest.mark.parametrize("Tq", [3, 40])
def test_lazily_negated_tensors(cxx, Tq: int):
    """The imaginary part of a conjugate: its memory holds the values with the other sign."""
    complex_numbers = torch.randn(1, 2, 40, 8, dtype=torch.complex64)
    k = complex_numbers.conj().imag
    assert k.is_neg()
    q, v = torch.randn(1, 2, Tq, 8), torch.randn(1, 2, 40, 8)
    for found in (attention(q, k, v), attention(q.requires_grad_(), k, v)):
        expected = attention(q, -complex_numbers.imag, v, backend="reference")
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_decoding_checks_every_call(cxx):
    """What is kept from the first call of a signature does not hide a fault of a later one."""
    q, k, v = torch.randn(1, 2, 1, 8), torch.randn(1, 2, 40, 8), torch.randn(1, 2, 40, 8)
    for keys in (40, 7):
        found = attention(q, k[:, :, :keys], v[:, :, :keys])
        expected = attention(q, k[:, :, :keys], v[:, :, :keys], backend="reference")
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="v: got shape"):
        attention(q, k, v[:, :, :39])
    with pytest.raises(ValueError, match="expected no empty dimension"):
        attention(q, k[:, :, :0], v[:, :, :0])


@pytest.mark.parametrize("level", ["python", "c++"])
@pytest.mark.parametrize("Tq", [3, 40])
def test_hooks_may_return_strided_tensors(level: str, Tq: int, request):
    """`saved_tensors_hooks` that load tensors from elsewhere do not keep strides."""
    if level == "c++":
        request.getfixturevalue("cxx")
    inputs = Case(B=2, H=4, Hkv=2, Tq=Tq, Tk=40).inputs(torch.float32)
    options = {
        "mask": torch.rand(2, 1, Tq, 40) > 0.2,
        "documents": torch.arange(40) // 15,
        "dropout": 0.2,
        "dropout_seed": torch.tensor(3),
    }

    def spread(t: Tensor) -> Tensor:
        return torch.stack([t, torch.zeros_like(t)], dim=-1)[..., 0]

    def results() -> list[Tensor]:
        if level == "c++":
            return run(diff_attention, inputs, causal=True, **options)
        with fused_cpu.python_level():
            return run(diff_attention, inputs, causal=True, **options)

    expected = results()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, spread):
        found = results()
    assert max(errors(found, [t.double() for t in expected])) < 1e-6
