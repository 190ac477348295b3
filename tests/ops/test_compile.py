"""`torch.compile(fullgraph=True)` and `torch.export` keep the operator and its results."""

import pytest
import torch

from antiphase import diff_attention
from antiphase.ops import attention, documents_from_position_ids
from antiphase.ops.fused_cpu import native
from tests.ops.cases import Case, errors, run


def layer(q1, k1, q2, k2, v, lam):
    out = diff_attention(2 * q1, k1, q2, k2, v, torch.sigmoid(lam), causal=True)
    return out.square() + 1


def operator(q1, k1, q2, k2, v, lam):
    return diff_attention(q1, k1, q2, k2, v, lam, causal=True)


@pytest.mark.parametrize(
    ("backend", "function"),
    [
        ("eager", layer),
        ("aot_eager", layer),
        ("inductor", operator),  # generates no C++ of its own, so it compiles fast
        pytest.param("inductor", layer, marks=pytest.mark.slow),
    ],
)
def test_compiled_equals_eager(backend: str, function):
    if backend == "inductor" and native.compiler() is None:
        pytest.skip("NO C++ COMPILER: inductor needs one")
    torch._dynamo.reset()
    inputs = Case(H=4, Hkv=2, Tq=33).inputs(torch.float32)
    eager = run(function, inputs)
    compiled = run(torch.compile(function, fullgraph=True, backend=backend), inputs)
    assert max(errors(compiled, [t.double() for t in eager])) < 1e-6


@pytest.mark.parametrize("name", ["reference", "sdpa", "fused_cpu"])
def test_every_backend_compiles_with_masks_and_numbers(name: str):
    torch._dynamo.reset()
    inputs = Case(B=2, H=4, Hkv=2, Tq=12).inputs()[:-1]
    mask = torch.rand(2, 1, 12, 12) > 0.3

    def f(*tensors):
        return diff_attention(*tensors, 0.5, mask=mask, backend=name)

    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*inputs), f(*inputs))


def test_lengths_may_vary_in_one_graph():
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)
    for T in (17, 33, 70):
        inputs = Case(Tq=T).inputs(torch.float32)
        torch.testing.assert_close(compiled(*inputs), layer(*inputs))


def test_export_keeps_one_operator():
    class Module(torch.nn.Module):
        def forward(self, q, k, v, sink):
            return attention(q, k, v, sink=sink, causal=True, backend="fused_cpu")

    inputs = (*(torch.randn(1, 2, 20, 16) for _ in range(3)), torch.randn(2))
    program = torch.export.export(Module(), inputs)
    targets = [str(n.target) for n in program.graph.nodes if n.op == "call_function"]
    assert sum("antiphase.fused_attention" in t for t in targets) == 1
    torch.testing.assert_close(program.module()(*inputs), Module()(*inputs))


RESTRICTED = {
    "window": {"window": 5, "keep_first": 2},
    "documents": {},
    "all": {"window": 5, "softcap": 2.0, "dropout": 0.3},
}


@pytest.mark.parametrize("name", RESTRICTED)
@pytest.mark.parametrize("backend", ["auto", "reference", "sdpa", "fused_cpu"])
def test_windows_documents_and_dropout_compile(name: str, backend: str):
    torch._dynamo.reset()
    inputs = Case(B=2, H=4, Hkv=2, Tq=12).inputs()
    ids = torch.arange(12).expand(2, 12) // 5 if name in ("documents", "all") else None

    def f(*tensors):
        options = {**RESTRICTED[name], "documents": ids, "backend": backend}
        return diff_attention(*tensors, causal=True, **options)

    torch.manual_seed(0)
    eager = run(f, inputs)
    torch.manual_seed(0)
    compiled = run(torch.compile(f, fullgraph=True, backend="aot_eager"), inputs)
    assert max(errors(compiled, eager)) < 1e-12


@pytest.mark.parametrize("name", RESTRICTED)
def test_windows_documents_and_dropout_export(name: str):
    class Module(torch.nn.Module):
        def forward(self, q1, k1, q2, k2, v, lam, positions):
            ids = documents_from_position_ids(positions) if name in ("documents", "all") else None
            options = {**RESTRICTED[name], "documents": ids}
            return diff_attention(q1, k1, q2, k2, v, lam, causal=True, **options)

    inputs = (*Case(B=2, Tq=12).inputs(torch.float32), torch.arange(12).expand(2, 12) % 5)
    batch, length = torch.export.Dim("batch", min=2), torch.export.Dim("length", min=2)
    shapes = tuple({0: batch, 2: length} for _ in range(6))
    program = torch.export.export(Module(), inputs, dynamic_shapes=(*shapes, {0: batch, 1: length}))
    longer = (*Case(B=3, Tq=20).inputs(torch.float32), torch.arange(20).expand(3, 20) % 7)
    for given in (inputs, longer):
        torch.manual_seed(0)
        want = Module()(*given)
        torch.manual_seed(0)
        torch.testing.assert_close(program.module()(*given), want)


@pytest.mark.parametrize("grad", [False, True])
def test_operators_pass_torch_library_checks(grad: bool):
    inputs = [t.requires_grad_(grad) for t in Case(Tq=9).inputs(torch.float32)]
    q1, k1, q2, k2, v, lam = inputs
    tensors = (q1, k1, q2, k2, v, lam, None, None, None, None)
    arguments = (*tensors, True, 0, 0, 0.0, 0.0, 0.25, 0.25)
    torch.library.opcheck(torch.ops.antiphase.fused_attention.default, arguments)
